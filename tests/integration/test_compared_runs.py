"""Real runs compared: what the script planted, and what it changed besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.processes import PYTHON, run
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
    command = (*PYTHON, "-m", "trainprof", "compare", "--format", "json")
    done = run(command, *words, cwd=directory)
    return json.loads(done.stdout), done.status


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
    assert {"script source differs", "Changed: arguments 2 -> 22"} <= set(comparison["notes"])
