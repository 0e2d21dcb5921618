"""Whose descendant a process is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainprof.record import event_log

ROOT = Path(__file__).parents[3]

PRINTS = "from trainprof.record.event_log import ancestors; print(*ancestors())"
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_parent_and_grandparent_come_in_order():
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, PRINTS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        told, _ = child.communicate()
    assert list(map(int, told.split()))[:3] == [child.pid, os.getpid(), os.getppid()]


def test_without_proc_the_parent_alone_is_known(monkeypatch):
    monkeypatch.setattr(event_log, "_parent_of", lambda pid: None)
    assert event_log.ancestors() == [os.getppid()]


def test_a_circle_ends(monkeypatch):
    """Pids are read one after another: a new process may have taken one meanwhile."""
    monkeypatch.setattr(event_log, "_parent_of", lambda pid: pid)
    assert len(event_log.ancestors()) == event_log.MAX_ANCESTORS
