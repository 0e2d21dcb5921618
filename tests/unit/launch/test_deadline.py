"""A script that hangs is ended with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from support.events import FakeRun
from support.session import FakeClock

from trainprof.launch import deadline
from trainprof.launch.deadline import (
    AFTER_LIMIT_S,
    AT_END_S,
    ENDING_S,
    LONGEST_WAIT_S,
    POLL_S,
    SHORTEST_WAIT_S,
    Deadline,
    Lingering,
    TimeToEnd,
    TrialWatch,
    last_checks,
    time_to_next_step,
)
from trainprof.record.limit_met import AT_END, LIMIT_MET
from trainprof.record.schema import Kind

S = 1_000_000_000

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
    monkeypatch.setattr(deadline, "ALONE_S", 0.05)
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
    assert not Deadline(script.pid, None).cancel()


def fails():
    raise OSError("the disk is gone")


def test_one_that_lingers_is_killed_ahead_of_its_time(monkeypatch):
    monkeypatch.setattr(deadline, "POLL_S", 0.01)
    with started("import time; time.sleep(60)") as script:
        watched = Deadline(script.pid, 60, lingers=lambda: True)
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()


def test_what_fails_in_looking_lets_nothing_hang(monkeypatch):
    monkeypatch.setattr(deadline, "POLL_S", 0.01)
    with started("import time; time.sleep(60)") as script:
        watched = Deadline(script.pid, 0.05, lingers=fails)
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()


def test_its_processes_hear_sigterm_once_the_script_has_ended_or_had_its_chance():
    heard = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True);"
    waits = f"{heard} sys.stdin.read()"
    starts = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {waits!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.exit(child.wait())
"""
    with started(starts) as script:
        child = psutil.Process(int(script.stdout.readline()))
        watched = Deadline(script.pid, 0.0)
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()
    assert psutil.wait_procs([child], timeout=30)[1] == []


def test_who_needs_more_time_is_asked_again(monkeypatch):
    monkeypatch.setattr(deadline, "POLL_S", 0.01)
    more, kept = iter([0.02, 0.01, 0.0]), []
    with started("import time; time.sleep(60)") as script:
        watched = Deadline(
            script.pid, 0.01, more_time=lambda: next(more), before_end=lambda: kept.append(1)
        )
        assert script.wait(timeout=30) == -signal.SIGTERM
        assert watched.cancel()
    assert (list(more), kept) == ([], [1])


@pytest.mark.parametrize(
    ("checks", "seconds"),
    [
        ([], 0.0),
        ([100 * S], SHORTEST_WAIT_S),
        ([99 * S, 100 * S - 1], 2.0),  # twice the longest gap
        ([60 * S, 80 * S, 99 * S], 40.0),
        ([20 * S, 99 * S], LONGEST_WAIT_S),
        ([90 * S, 91 * S, 92 * S], 0.0),  # steps of a second, and none for eight
        ([98 * S, 98 * S + 1], 0.0),
    ],
)
def test_who_makes_steps_has_time_to_come_to_the_next(checks, seconds):
    assert time_to_next_step(checks, 100 * S) == pytest.approx(seconds)


def test_once_it_has_begun_to_end_it_has_its_time_to_save(tmp_path):
    run = FakeRun()
    run.leaf(Kind.FORWARD, S)
    run.leaf(Kind.BACKWARD, S)
    run.leaf(Kind.GC, 10 * S)
    directory, clock = run.write(tmp_path), FakeClock(run.now)
    assert last_checks(directory) == [2 * S, 3 * S]
    clock.advance(-9 * S)
    time_left = TimeToEnd(directory, now_ns=clock)
    assert time_left() == 2.0
    assert time_left() == 0.0
    (directory.path / f"{LIMIT_MET}-1").touch()
    assert time_left() == POLL_S
    clock.advance(int((ENDING_S - 0.5) * S))
    assert time_left() == pytest.approx(0.5)
    clock.advance(S)
    assert time_left() < 0


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


def note(directory, what, pid=None):
    (directory.path / f"{what}-{pid or os.getpid()}").touch()


@pytest.mark.parametrize(("what", "allowed_s"), [(AT_END, AT_END_S), (LIMIT_MET, AFTER_LIMIT_S)])
def test_it_lingers_once_it_takes_too_long(tmp_path, what, allowed_s):
    directory, now = recorded(tmp_path, pid=os.getpid(), ended=Kind.LIMIT), Now()
    watch = Lingering(directory, now=now)
    assert not watch.is_over()
    note(directory, what)
    now.s += 10 * allowed_s  # it counts from when it was noted
    assert not watch.is_over()
    now.s += allowed_s - 1
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
        note(directory, AT_END, child.pid)
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
    note(directory, AT_END)
    watch.is_over()
    now.s += AT_END_S
    assert watch.is_over() is is_over


MIB, GIB = 1 << 20, 1 << 30
PID = 4711


@pytest.mark.parametrize(
    ("free_bytes", "ends"),
    [
        ([100 * GIB, 2 * GIB, 2 * GIB - 4096], [False, False, True]),
        # Where little was free it ends before half of that is left.
        ([GIB, 512 * MIB, 511 * MIB], [False, False, True]),
        ([PermissionError(), GIB, 100 * MIB], [False, False, True]),
        ([FileNotFoundError()], [False]),  # of a process that is gone
    ],
)
def test_a_trial_ends_before_its_files_fill_the_disk(monkeypatch, free_bytes, ends):
    answers, asked = iter(free_bytes), []

    def statvfs(path):
        asked.append(path)
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return SimpleNamespace(f_bavail=answer // 4096, f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", statvfs)
    watch = TrialWatch(PID, "/work/my runs")
    assert [watch.must_end() for _ in ends] == ends
    assert watch.is_full is ends[-1]
    assert set(asked) == {f"/proc/{PID}/root/work/my runs"}
