"""A script that hangs is ended with all that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

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
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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


def fails():
    raise OSError("the disk is gone")


def test_one_that_lingers_is_killed_ahead_of_its_time(monkeypatch):
    monkeypatch.setattr(deadline, "LOOK_EVERY_S", 0.01)
    with started("import time; time.sleep(60)") as script:
        watched = Deadline(script.pid, 60, lambda: True)
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()


@pytest.mark.parametrize("lingers", [lambda: False, fails])
def test_one_that_does_not_linger_has_its_time(monkeypatch, lingers):
    monkeypatch.setattr(deadline, "LOOK_EVERY_S", 0.01)
    asked, is_asked = [], threading.Event()

    def asks():
        asked.append(1)
        if len(asked) > 2:
            is_asked.set()
        return lingers()

    with started("import sys; sys.stdin.read()") as script:
        watched = Deadline(script.pid, 60, asks)
        assert is_asked.wait(30)
        script.stdin.close()
        assert script.wait(timeout=30) == 0
        assert not watched.cancel()


def test_what_fails_in_looking_lets_nothing_hang(monkeypatch):
    monkeypatch.setattr(deadline, "LOOK_EVERY_S", 0.01)
    with started("import time; time.sleep(60)") as script:
        watched = Deadline(script.pid, 0.05, fails)
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()
