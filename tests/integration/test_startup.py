"""What start-up and shutdown go to, of a script that measures the same by its own clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.session import ROOT

from trainprof.inside.process.own_thread import why_unsupported

pytestmark = pytest.mark.skipif(why_unsupported() is not None, reason="stacks are not sampled here")

BUSY = """
import time
def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))
"""
SCRIPT = """
import json, sys, time
began = [time.perf_counter()]
def lap():
    began.append(time.perf_counter())
    return began[-1] - began[-2]
import slow_package
laps = {"slow_package": lap()}
import slow_module
laps["slow_module"] = lap()
import torch
laps["torch"] = lap()
from busy import busy
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        busy(0.05)
        return torch.ones(4)
data = Texts()
lap()
lengths = sorted(len(data[index]) for index in range(16))
laps["index"] = lap()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
laps["torch"] += lap()  # the first optimizer imports more of it
for batch in torch.utils.data.DataLoader(torch.ones(64, 4)):
    model(batch).sum().backward()
    optimizer.step()
lap()
busy(1.0)
laps["end"] = lap()
print(json.dumps(laps))
"""
GETS_SAMPLE, CALLS, ENDS, IMPORTS = (
    SCRIPT.splitlines().index(line) + 1
    for line in (
        "        busy(0.05)",
        "lengths = sorted(len(data[index]) for index in range(16))",
        "busy(1.0)",
        "import slow_package",
    )
)
TOLERANCE = 0.25


def profiled(tmp_path: Path, name: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns what the script measured, and the summary."""
    command = [sys.executable, "-m", "trainprof", "run", "-q", "-o", name, "train.py"]
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site-packages")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    report = [sys.executable, "-m", "trainprof", "report", name, "--format", "json"]
    shown = subprocess.run(
        report, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout), json.loads(shown.stdout)


def test_lines_imports_and_shutdown_have_the_time_that_they_took(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "slow_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import busy\nfrom . import inner\n")
    (package / "inner.py").write_text("from busy import busy\nbusy(0.8)\n")
    (tmp_path / "site-packages" / "busy.py").write_text(BUSY)
    (tmp_path / "slow_module.py").write_text("from busy import busy\n\nbusy(0.8)\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    for attempt in attempts():
        took, summary = profiled(tmp_path, f"run{attempt}")
        startup, shutdown = summary["startup"], summary["shutdown"]
        lines = {x["site"]: x["seconds"] for x in startup["lines"]}
        imports = {x["package"]: x["seconds"] for x in startup["imports"]}
        ends = {x["site"]: x["seconds"] for x in shutdown["lines"]}
        pairs = {
            "slow_package": imports.get("slow_package", 0.0),
            "torch": imports.get("torch", 0.0),
            "slow_module": lines.get("slow_module.py:3", 0.0),
            "index": lines.get(f"train.py:{GETS_SAMPLE}", 0.0),
            "end": ends.get(f"train.py:{ENDS}", 0.0),
        }
        if all(abs(pairs[name] - took[name]) <= TOLERANCE * took[name] for name in pairs):
            break
    assert pairs == pytest.approx({name: took[name] for name in pairs}, rel=TOLERANCE)
    [index] = [x for x in startup["lines"] if x["site"] == f"train.py:{GETS_SAMPLE}"]
    assert (index["function"], index["called_from"]) == ("__getitem__", [f"train.py:{CALLS}"])
    [slow] = [x for x in startup["imports"] if x["package"] == "slow_package"]
    assert slow["site"] == f"train.py:{IMPORTS}"
    assert shutdown["exit_s"] > 0
    measured_s = sum(took[name] for name in ("slow_package", "slow_module", "torch", "index"))
    assert sum([*lines.values(), *imports.values()]) == pytest.approx(measured_s, rel=TOLERANCE)
