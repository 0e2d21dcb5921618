"""When a trial's script has nothing more to show, and does not end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.events import FakeRun

from trainprof.launch.deadline import AFTER_LIMIT_S, AT_END_S, Lingering
from trainprof.record.limit_met import AT_END, LIMIT_MET
from trainprof.record.schema import Kind

OTHER_PID = 77


class Now:
    """A clock that only the test moves, in seconds."""

    def __init__(self):
        self.s = 100.0

    def __call__(self):
        return self.s


def recorded(parent, *, pid, trains=True, ended):
    run = FakeRun(pid=pid)
    run.forward()
    if trains:
        run.backward()
    if ended is not None:
        run.mark(ended)
    return run.write(parent)


def told(directory, what, pid=None):
    (directory.path / f"{what}-{pid or os.getpid()}").touch()


@pytest.mark.parametrize(("what", "allowed_s"), [(AT_END, AT_END_S), (LIMIT_MET, AFTER_LIMIT_S)])
def test_it_lingers_once_it_takes_too_long(tmp_path, what, allowed_s):
    directory, now = recorded(tmp_path, pid=os.getpid(), ended=Kind.LIMIT), Now()
    watch = Lingering(directory, now=now)
    assert not watch.is_over()
    told(directory, what)
    now.s += 10 * allowed_s  # it counts from when it was told
    assert not watch.is_over()
    now.s += allowed_s - 1
    assert not watch.is_over()
    now.s += 1
    assert watch.is_over()


def test_what_saves_behind_its_limit_has_the_time_of_that_and_then_of_its_end(tmp_path):
    directory, now = recorded(tmp_path, pid=os.getpid(), ended=Kind.LIMIT), Now()
    watch = Lingering(directory, now=now)
    told(directory, LIMIT_MET)
    assert not watch.is_over()
    now.s += AFTER_LIMIT_S - 1
    told(directory, AT_END)
    assert not watch.is_over()
    now.s += AT_END_S - 1
    assert not watch.is_over()
    now.s += 1
    assert watch.is_over()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_one_that_has_ended_does_not_linger_whatever_its_parent_does(tmp_path, is_reaped):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            child.wait()
        directory, now = recorded(tmp_path, pid=child.pid, ended=Kind.LIMIT), Now()
        watch = Lingering(directory, now=now)
        told(directory, AT_END, child.pid)
        assert not watch.is_over()
        now.s += 10 * AFTER_LIMIT_S
        assert not watch.is_over()


@pytest.mark.parametrize(
    ("other", "is_over"),
    [
        ({"ended": None}, False),  # it trains on, with no limit met
        ({"ended": Kind.LIMIT}, True),
        ({"ended": Kind.PROCESS_END}, True),
        ({"ended": None, "trains": False}, True),  # an actor, which nobody stops
    ],
)
def test_none_of_the_others_may_train(tmp_path, other, is_over):
    directory, now = recorded(tmp_path, pid=os.getpid(), ended=Kind.LIMIT), Now()
    recorded(tmp_path, pid=OTHER_PID, **other)  # type: ignore[arg-type]
    watch = Lingering(directory, now=now)
    told(directory, AT_END)
    watch.is_over()
    now.s += AT_END_S
    assert watch.is_over() is is_over


def test_a_log_that_cannot_be_read_may_be_one_that_trains(tmp_path):
    directory, now = recorded(tmp_path, pid=os.getpid(), ended=Kind.LIMIT), Now()
    (directory.events / f"{OTHER_PID}-1.events").write_bytes(b"x" * 4096)
    watch = Lingering(directory, now=now)
    told(directory, AT_END)
    watch.is_over()
    now.s += AT_END_S
    assert not watch.is_over()
    (directory.events / f"{OTHER_PID}-1.events").write_bytes(bytes(4096))  # of one just begun
    assert watch.is_over()
