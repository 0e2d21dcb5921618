"""`tune` ends with its budget, whatever the script does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.styles import without_compiler

BUDGET_S = 12.0
# Beyond the budget: SIGTERM and SIGKILL, reading what was recorded (3 s), and a busy machine.
ENDING_S = 45.0

IN_PYTHON = """
import time
import torch
time.sleep(3600)
"""
# No other thread and no signal handler of Python runs in the meantime.
IN_NATIVE_CODE = """
import ctypes, signal
import torch
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.PyDLL(None).sleep(3600)
"""
WITH_A_CHILD = """
import signal, subprocess, sys
import torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(3600)
'''])
"""


@pytest.mark.parametrize(
    "hangs",
    [IN_PYTHON, IN_NATIVE_CODE, WITH_A_CHILD],
    ids=["in Python", "in native code", "with a child"],
)
def test_a_script_that_hangs_before_its_first_step_ends_with_the_budget(
    tmp_path: Path, hangs: str
) -> None:
    (tmp_path / "train.py").write_text(without_compiler(hangs))
    done = subprocess.run(
        [sys.executable, "-m", "trainprof", "tune", f"--budget={BUDGET_S:g}s", "-o=t", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUDGET_S + ENDING_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "plan: the first run shows how many trials fit into 12 s" in done.stderr
    assert "warm_up: hung: no step in " in done.stderr
    assert "the script hangs, or starts slowly: no step in " in done.stderr
    assert "longer --budget" in done.stderr
