"""Real runs compared: what the script planted, and what it changed besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.session import run_under
from support.styles import without_compiler

# A step sleeps so many ms: on a busy machine longer, but by 20 ms more in OTHER than in BASE.
SCRIPT = without_compiler("""
import sys, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    time.sleep(float(sys.argv[1]) / 1e3)
    loss = model(torch.randn(8, 4)).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""")


def compared(directory: Path, *words: str) -> tuple[dict[str, Any], int]:
    command = [sys.executable, "-m", "trainprof", "compare", *words, "--format", "json"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    return json.loads(done.stdout), done.returncode


def test_two_real_runs_and_what_was_changed_between_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run_under([script, "2"], tmp_path, tmp_path / "a").returncode == 0
    script.write_text(SCRIPT + "# changed\n")
    assert run_under([script, "22"], tmp_path, tmp_path / "b").returncode == 0
    comparison, status = compared(tmp_path, "a", "b")
    assert status == 0
    # The median: a busy machine may hold up any step, and half of them hardly for 20 ms.
    step = next(metric for metric in comparison["metrics"] if metric["name"] == "step_p50_s")
    assert step["other"] > step["base"]
    assert not comparison["comparable"]
    assert {"the script's text differs", "Changed: arguments 2 -> 22"} <= set(comparison["notes"])


SETTINGS = "import sys; print(open(sys.argv[1]).read())\n"


def test_edits_of_settings_are_listed(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "cfg.yaml"
    script.write_text(SETTINGS + SCRIPT.replace("sys.argv[1]", "2"))
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        config.write_text(f"hidden_dim: {value}\n")
        assert run_under([script, "cfg.yaml"], tmp_path, tmp_path / name).returncode == 0
    same, edited = (compared(tmp_path, "a", name)[0]["notes"] for name in "bc")
    assert "Changed: cfg.yaml was edited" in edited
    assert not any("edited" in note for note in same)
