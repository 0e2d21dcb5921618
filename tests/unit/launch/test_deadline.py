"""A script that hangs is ended with all that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from trainprof.launch import deadline
from trainprof.launch.deadline import Deadline

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
WITH_A_CHILD = f"""
import subprocess, sys, time
{DEAF}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)  # not until the child ends, which may be killed first
"""


@pytest.fixture(autouse=True)
def _little_grace(monkeypatch):
    monkeypatch.setattr(deadline, "GRACE_S", 0.05)


def started(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_one_that_does_not_listen_is_killed_with_its_children():
    with started(WITH_A_CHILD) as script:
        child = psutil.Process(int(script.stdout.readline()))
        watched = Deadline(script.pid, 0.05)
        assert script.wait(timeout=30) == -signal.SIGKILL
        assert watched.cancel()
    assert psutil.wait_procs([child], timeout=30)[1] == []


def test_one_that_ends_in_time_is_left_alone():
    with started("print(1)") as script:
        watched = Deadline(script.pid, 60)
        assert script.wait(timeout=30) == 0
        assert not watched.cancel()


def test_without_a_limit_nothing_watches():
    assert not Deadline(1, None).cancel()
