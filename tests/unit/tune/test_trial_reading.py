"""What one run of a trial is taken for, by what its processes recorded and how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.summary.tune import FAILED, HUNG, OK, TIMED_OUT, TOO_FEW_STEPS
from trainprof.launch.outcome import Outcome
from trainprof.record.schema import Kind, Topic
from trainprof.tune.trial import Measured, Trial
from trainprof.tune.trial_limits import steps_of_trials
from trainprof.tune.trial_reading import DID_NOT_END, Ended, measured

LAUNCHER_PID = 10
MAX_STEPS, MAX_TIME = 1, 2
TRACEBACK = "Traceback (most recent call last):\n{}: [Errno 2] No such file: 'final.pt'\n"


def run_of(
    tmp_path: Path,
    *,
    steps: int = 60,
    limit: int = 0,
    status: int = 0,
    signal: int | None = None,
    child_raised: str | None = None,
    is_overdue: bool = False,
    silent_ms: int = 0,
) -> Measured:
    """A child trains, and its parent ends with so many a status."""
    child = FakeRun(pid=20, role="child", header={"ancestors": [LAUNCHER_PID, 1]})
    loader, optimizer = child.loader(41, length=1000), child.optimizer()
    child.iterate(loader)
    for _ in range(steps):
        child.next(loader, MS)
        child.learn(optimizer)
    if limit:
        child.mark(Kind.LIMIT, value=limit)
    name = child.text(Topic.EXCEPTION, child_raised) if child_raised else 0
    child.mark(Kind.PROCESS_END, value=name)
    parent = FakeRun(pid=LAUNCHER_PID)
    parent.now = child.now + silent_ms * MS
    raised = "FileNotFoundError" if status == 1 else None
    parent.mark(Kind.PROCESS_END, value=parent.text(Topic.EXCEPTION, raised) if raised else 0)
    child.write(tmp_path)
    reason = "completed" if status == 0 else "exception"
    told = {"status": status, "signal": None, "reason": reason, "detail": None}
    if signal is not None:
        told = {"status": None, "signal": signal, "reason": "signal", "detail": None}
    directory = parent.write(tmp_path, exit=told)
    directory.console.mkdir()
    if raised:
        (directory.console / "stderr").write_text(TRACEBACK.format(raised))
    outcome = Outcome(
        pid=LAUNCHER_PID,
        status=None if signal is not None else status,
        signal=signal,
        spawned_ns=parent.start,
        ended_ns=parent.now,
        max_rss_bytes=0,
        user_s=0.0,
        system_s=0.0,
        interrupted=False,
        signals_received=(),
    )
    ended = Ended(outcome, is_overdue)
    return measured(Trial("baseline"), 1, directory, ended, relative_to=tmp_path)


def test_a_child_that_came_to_its_end_is_a_whole_run(tmp_path: Path) -> None:
    found = run_of(tmp_path)
    assert (found.outcome, found.was_cut, found.failed_after) == (OK, False, None)
    assert found.run_s is not None
    assert steps_of_trials(found, 600.0) is None


@pytest.mark.parametrize("limit", [MAX_STEPS, MAX_TIME])
def test_a_child_that_a_limit_ended_is_none(tmp_path: Path, limit: int) -> None:
    found = run_of(tmp_path, limit=limit)
    assert (found.outcome, found.run_s, found.failed_after) == (OK, None, None)
    assert found.was_cut == (limit == MAX_TIME)
    assert steps_of_trials(found, 600.0) is not None


def test_a_parent_that_fails_once_its_child_was_ended_is_measured(tmp_path: Path) -> None:
    found = run_of(tmp_path, limit=MAX_STEPS, status=1)
    assert (found.outcome, found.detail, found.steps) == (OK, None, 60)
    assert found.is_ok
    assert found.run_s is None
    assert found.failed_after == "FileNotFoundError: [Errno 2] No such file: 'final.pt'"


def test_one_that_dies_by_a_signal_then_is_too(tmp_path: Path) -> None:
    found = run_of(tmp_path, limit=MAX_STEPS, signal=6)
    assert (found.outcome, found.failed_after) == (OK, "ended by SIGABRT")


def test_too_few_steps_until_then_are_too_few(tmp_path: Path) -> None:
    found = run_of(tmp_path, steps=5, limit=MAX_TIME, status=1)
    assert (found.outcome, found.pace, found.was_cut) == (TOO_FEW_STEPS, None, True)


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({}, FAILED),  # no limit was met
        ({"child_raised": "KeyError"}, FAILED),
        ({"is_overdue": True}, TIMED_OUT),
        ({"is_overdue": True, "child_raised": "KeyError"}, TIMED_OUT),
    ],
)
def test_what_failed_by_itself_or_hung_is_not(
    tmp_path: Path, how: dict[str, object], outcome: str
) -> None:
    found = run_of(tmp_path, status=1, **how)  # type: ignore[arg-type]
    assert (found.outcome, found.pace, found.failed_after) == (outcome, None, None)


def test_one_that_was_killed_without_a_step_hung(tmp_path: Path) -> None:
    found = run_of(tmp_path / "a", steps=0, signal=9, is_overdue=True, silent_ms=30_000)
    assert (found.outcome, found.detail, found.was_cut) == (HUNG, "no step in 30 s", True)


@pytest.mark.parametrize(
    ("silent_ms", "outcome", "detail"),
    [(9_000, TIMED_OUT, None), (30_000, HUNG, "no step in the last 30 s, after 60")],
)
def test_one_that_was_killed_long_after_its_last_step_hung(
    tmp_path: Path, silent_ms: int, outcome: str, detail: str | None
) -> None:
    found = run_of(tmp_path, signal=9, is_overdue=True, silent_ms=silent_ms)
    assert (found.outcome, found.detail, found.pace) == (outcome, detail, None)


@pytest.mark.parametrize("how", [{"signal": 15}, {"signal": 9}, {"status": 1}, {"status": 0}])
def test_one_that_did_not_end_once_it_was_limited_is_measured(
    tmp_path: Path, how: dict[str, int]
) -> None:
    """A thread that its script stops behind the loop goes on; it is killed, and may listen."""
    found = run_of(tmp_path, limit=MAX_STEPS, is_overdue=True, **how)
    assert (found.outcome, found.detail, found.was_cut, found.steps) == (OK, None, False, 60)
    assert found.is_ok
    assert (found.failed_after, found.run_s) == (DID_NOT_END, None)


def test_so_is_one_whose_time_was_over_first(tmp_path: Path) -> None:
    found = run_of(tmp_path, limit=MAX_TIME, is_overdue=True, signal=15)
    assert (found.outcome, found.failed_after, found.was_cut) == (OK, DID_NOT_END, True)
