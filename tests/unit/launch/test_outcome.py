from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from trainprof.launch.outcome import outcome_of


def outcome(wait_status, *received, interrupted=False):
    return outcome_of(
        wait_status,
        resource.getrusage(resource.RUSAGE_SELF),
        ended_ns=2,
        signals_received=received,
        interrupted=interrupted,
    )


def test_status_or_signal_and_whether_it_was_interrupted():
    assert (outcome(3 << 8).status, outcome(3 << 8).signal) == (3, None)
    dumped = 0x80
    ended = outcome(signal.SIGABRT | dumped)
    assert (ended.status, ended.signal) == (None, signal.SIGABRT)
    assert outcome(signal.SIGINT).interrupted
    assert outcome(130 << 8).interrupted
    assert outcome(0, signal.SIGINT, interrupted=True).interrupted
    assert not outcome(0, signal.SIGTERM).interrupted
    # received by a background job that is deaf to it
    assert not outcome(0, signal.SIGINT).interrupted


@pytest.mark.parametrize(
    ("wait_status", "expected"),
    [(0, 0), (7 << 8, 7), (255 << 8, 255), (9, -9), (15, -15), (6, -6)],
)
def test_the_end_is_mirrored_without_a_core_dump(wait_status, expected):
    text = f"""
import resource
from trainprof.launch.outcome import mirror_exit, outcome_of
usage = resource.getrusage(resource.RUSAGE_SELF)
print("kept")
mirror_exit(outcome_of({wait_status}, usage, ended_ns=0,
                       signals_received=(), interrupted=False))
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"kept\n"
        process.wait()
    assert process.returncode == expected
