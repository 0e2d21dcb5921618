"""`tune` ends with its budget, whatever the script does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.styles import without_compiler

BUDGET_S = 10.0
TUNE = (sys.executable, "-m", "trainprof", "tune")
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


HANGS = {"in_python": IN_PYTHON, "in_native_code": IN_NATIVE_CODE, "with_a_child": WITH_A_CHILD}


def test_scripts_that_hang_before_their_first_step_end_with_the_budget(tmp_path: Path) -> None:
    """They sleep, all at the same time: the budget passes once."""
    tunes = {}
    for name, script in HANGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(without_compiler(script))
        tunes[name] = subprocess.Popen(
            [*TUNE, f"--budget={BUDGET_S:g}s", "-o=t", "--format=json", "train.py"],
            cwd=tmp_path / name,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for name, tune in tunes.items():
        _, stderr = tune.communicate(timeout=BUDGET_S + ENDING_S)
        assert tune.returncode == 2, (name, stderr)
        assert "warm_up: hung" in stderr, name
        assert "--budget" in stderr, name
