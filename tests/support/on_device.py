"""Scripts that train on a device of which nothing is planted, bare and under trainprof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# The type of device that scripts train on.
VARIABLE: Final = "TEST_DEVICE"
# The first use of a device, and of a library on it, can take long.
DEADLINE_S: Final = 300.0

# Line 1 of every script.
PREAMBLE: Final = """\
import json, os, statistics, sys, time
import torch
from torch import nn

device = os.environ.get("TEST_DEVICE", "cuda")
module = getattr(torch, device)
torch.manual_seed(0)

def wait():
    torch.accelerator.synchronize()

def perceptron(width):
    layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    return nn.Sequential(*layers).to(device)

def batches(steps, width, rows=32, sleep_s=0.0):
    x, y = torch.randn(rows, width), torch.randn(rows, 1)
    for _ in range(steps):
        time.sleep(sleep_s)
        yield x.to(device), y.to(device)

def descend(model, optimizer, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""


@dataclass(frozen=True)
class Ended:
    """A script that has ended."""

    stdout: str
    stderr: str
    status: int

    def last_line(self) -> Any:
        """Returns what its last line says, which is JSON."""
        return json.loads(self.stdout.splitlines()[-1])


def write(directory: Path, script: str, name: str = "script.py") -> Path:
    path = directory / name
    path.write_text(PREAMBLE + script)
    return path


def line_of(script: str, text: str) -> str:
    """Returns `script.py:12` for the only line that holds a text."""
    lines = (PREAMBLE + script).splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return f"script.py:{number}"


def bare(path: Path, device: str, *arguments: str) -> Ended:
    return _run([sys.executable, path.name, *arguments], path.parent, device)


def profiled(
    path: Path, device: str, *arguments: str, options: tuple[str, ...] = (), run: str = "run"
) -> tuple[Ended, dict[str, Any]]:
    """Runs it under `trainprof run -q`; returns how it ended and the summary."""
    words = ("-m", "trainprof", "run", "-q", "-o", run, *options, path.name, *arguments)
    ended = _run([sys.executable, *words], path.parent, device)
    return ended, json.loads((path.parent / run / "summary.json").read_text())


def part_of(run: Path, device: str, steps: str) -> dict[str, Any]:
    """Returns the summary of some steps, counted from 1: "21:60"."""
    words = ("-m", "trainprof", "report", str(run), "--steps", steps, "--format", "json")
    done = _run([sys.executable, *words], run.parent, device)
    assert done.status == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _run(command: list[str], directory: Path, device: str) -> Ended:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, VARIABLE: device, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "6"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ended(done.stdout, done.stderr, done.returncode)
