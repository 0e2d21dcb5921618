"""What one run of a trial is taken for: by its recording, its notes, its errors, and its end."""

from __future__ import annotations

import errno
import math
import os
import signal

import pytest
from support import summaries
from support.events import MS, FakeRun

from trainprof.analysis.summary.tune import (
    FAILED,
    HUNG,
    INTERRUPTED,
    NOT_APPLIED,
    OK,
    TIMED_OUT,
    TOO_FEW_STEPS,
)
from trainprof.findings.summarize import summarize
from trainprof.launch.outcome import Outcome
from trainprof.record.schema import Kind, Topic
from trainprof.tune.trial import Measured, Trial, baseline, ceiling, loader_alone
from trainprof.tune.trial_limits import steps_of_trials
from trainprof.tune.trial_output import last_words, read_trial_notes, refusal_in
from trainprof.tune.trial_reading import (
    DID_NOT_END,
    NEVER_ALONE,
    _outcome,
    measured,
    read,
)

LAUNCHER_PID = 10
MAX_STEPS, MAX_TIME = 1, 2
SITE = "train.py:41"


def outcome_of(run: FakeRun, *received: int, status=None, signal=None) -> Outcome:
    return Outcome(
        status=status,
        signal=signal,
        ended_ns=run.now,
        max_rss_bytes=0,
        user_s=0.0,
        system_s=0.0,
        interrupted=False,
        signals_received=received,
    )


# -- how it ended


TRACEBACK = "Traceback (most recent call last):\n{}: [Errno 2] No such file: 'final.pt'\n"
NO_FILE = "FileNotFoundError: [Errno 2] No such file: 'final.pt'"


def run_of(tmp_path, *, steps=60, limit=0, status=0, signal=None, is_overdue=False, silent_ms=0):
    """A child trains, and its parent ends with so many a status."""
    child = FakeRun(pid=20, role="child", header={"ancestors": [LAUNCHER_PID, 1]})
    loader, optimizer = child.loader(41, length=1000), child.optimizer()
    child.iterate(loader)
    for _ in range(steps):
        child.next(loader, MS)
        child.learn(optimizer)
    if limit:
        child.mark(Kind.LIMIT, value=limit)
    child.mark(Kind.PROCESS_END, value=0)
    parent = FakeRun(pid=LAUNCHER_PID)
    parent.now = child.now + silent_ms * MS
    raised = "FileNotFoundError" if status == 1 else None
    parent.mark(Kind.PROCESS_END, value=parent.text(Topic.EXCEPTION, raised) if raised else 0)
    child.write(tmp_path)
    reason = "completed" if status == 0 else "exception"
    end = {"status": status, "signal": None, "reason": reason, "detail": None}
    if signal is not None:
        end = {"status": None, "signal": signal, "reason": "signal", "detail": None}
    directory = parent.write(tmp_path, exit=end)
    directory.console.mkdir()
    if raised:
        (directory.console / "stderr").write_text(TRACEBACK.format(raised))
    outcome = outcome_of(parent, status=None if signal is not None else status, signal=signal)
    return measured(
        Trial("baseline"), 1, directory, outcome, is_overdue=is_overdue, relative_to=tmp_path
    )


LIMITED = {"limit": MAX_STEPS}
OVERDUE = {"is_overdue": True}
KILLED = {"signal": 9, "is_overdue": True}


@pytest.mark.parametrize(
    ("how", "outcome", "detail", "failed_after", "was_cut"),
    [
        ({}, OK, None, None, False),
        (LIMITED, OK, None, None, False),
        ({"limit": MAX_TIME}, OK, None, None, True),
        # Once its training was ended at the limit, how its parent ends is no matter.
        (LIMITED | {"status": 1}, OK, None, NO_FILE, False),
        (LIMITED | {"signal": 6}, OK, None, "ended by SIGABRT", False),
        ({"steps": 5, "limit": MAX_TIME, "status": 1}, TOO_FEW_STEPS, ..., NO_FILE, True),
        # A thread that its script stops behind the loop goes on; it is killed, and may listen.
        *((LIMITED | OVERDUE | {"signal": n}, OK, None, DID_NOT_END, False) for n in (15, 9)),
        *((LIMITED | OVERDUE | {"status": n}, OK, None, DID_NOT_END, False) for n in (1, 0)),
        ({"limit": MAX_TIME, "signal": 15} | OVERDUE, OK, None, DID_NOT_END, True),
        # It failed by itself, or hung.
        ({"status": 1}, FAILED, ..., None, False),
        ({"status": 1} | OVERDUE, TIMED_OUT, None, None, True),
        (KILLED | {"steps": 0, "silent_ms": 30_000}, HUNG, "no step in 30 s", None, True),
        (KILLED | {"silent_ms": 9_000}, TIMED_OUT, None, None, True),
        (KILLED | {"silent_ms": 30_000}, HUNG, "no step in the last 30 s, after 60", None, True),
    ],
)
def test_how_a_run_ended(tmp_path, how, outcome, detail, failed_after, was_cut):
    run = run_of(tmp_path, **how)
    assert (run.outcome, run.failed_after, run.was_cut) == (outcome, failed_after, was_cut)
    assert run.detail == detail or detail is ...
    assert run.is_ok is (outcome == OK) is (run.pace is not None)
    is_whole = how == {}
    assert (run.run_s is not None) is is_whole or outcome != OK
    if outcome == OK:
        assert run.steps == 60
        assert (steps_of_trials(run, 600.0) is None) is is_whole


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM", "SIGINT"])
def test_what_ends_the_session_is_no_failure_of_the_script(name, tmp_path):
    number = getattr(signal, name)
    for received, expected in (((number,), INTERRUPTED), ((), FAILED)):
        ended = outcome_of(FakeRun(), *received, signal=number)
        summary = summaries.slow_loader()
        assert _outcome(summary, ended, tmp_path, is_overdue=False)[0] == expected


# -- what its steps took


EACH = 40
LEARN_S = 0.00035


def training(passes: int, *, kept: int | None = None) -> FakeRun:
    """Passes of 40 steps: 6 ms at first, 12 from the fifth pass on, each behind a start of 80 ms.

    Batches take 2 ms, and grow with each pass; `kept`: they are free after so many passes.
    """
    run = FakeRun()
    loader, optimizer = run.loader(length=EACH), run.optimizer()
    for number in range(passes):
        run.iterate(loader, 80 * MS)
        for _ in range(EACH):
            start = run.now
            run.next(loader, 2 * MS, samples=8)
            run.record(Kind.FETCH_BATCH, start, start, site=1, value=1000 * (number + 1), flags=1)
            run.learn(optimizer, forward=4 * MS if number < 4 else 10 * MS)
        if kept is not None and number + 1 == kept:
            run.mark(Kind.FREE_DATA, site=loader, value=EACH)
        run.stop(loader)
    return run


def read_of(trial: Trial, run: FakeRun, directory) -> Measured:
    written = run.write(directory)
    return read(
        trial,
        1,
        written,
        summarize(written),
        outcome=OK,
        detail=None,
        failed_after=None,
        relative_to=directory,
    )


def test_a_part_of_a_run_is_as_a_run_that_was_ended_there(tmp_path):
    whole = read_of(baseline(), training(8), tmp_path / "whole")
    short = read_of(baseline(), training(4), tmp_path / "short")
    part = whole.up_to(4 * EACH)
    assert whole.pace.mean_s > 1.3 * short.pace.mean_s
    assert part.pace.mean_s == pytest.approx(short.pace.mean_s) == pytest.approx(0.006 + LEARN_S)
    # Ended within a training, it counts the starts of later passes, as that would.
    assert part.training_pace.mean_s == pytest.approx(0.006 + LEARN_S + 0.080 / EACH, rel=0.02)
    assert whole.up_to(8 * EACH) is whole
    assert whole.up_to(5).pace is None
    assert short.batches == {SITE: 2500}


def test_free_steps_are_numbered_as_those_of_the_run(tmp_path):
    free = read_of(ceiling((SITE,), None), training(8, kept=2), tmp_path)
    assert (free.seen.first, free.seen.until) == (2 * EACH, 8 * EACH)
    assert free.up_to(4 * EACH).pace.mean_s == pytest.approx(0.004 + LEARN_S)
    assert free.seen.drift_beyond(4 * EACH) > 0.5
    assert not free.is_least


@pytest.mark.parametrize(
    ("trial", "notes", "outcome", "detail"),
    [
        (loader_alone((SITE,)), [{"applied": {"data": "alone"}, "refused": {}}], OK, None),
        (loader_alone((SITE,)), [{"applied": {}, "refused": {"data": "x"}}], NOT_APPLIED, "x"),
        # Killed before it could tell.
        (loader_alone((SITE,)), [], NOT_APPLIED, NEVER_ALONE),
        (ceiling((SITE,), None), [{"applied": {}, "refused": {"data": "y"}}], NOT_APPLIED, "y"),
    ],
)
def test_data_that_never_came_as_asked_is_not_measured(tmp_path, trial, notes, outcome, detail):
    run = training(2)
    for note in notes:
        run.text(Topic.TRIAL, note)
    trial_run = read_of(trial, run, tmp_path)
    assert (trial_run.outcome, trial_run.detail, trial_run.steps) == (outcome, detail, 2 * EACH)
    assert trial_run.is_ok is (outcome == OK)


STEP_S = 0.006 + LEARN_S  # 2 ms of waiting, 4 ahead of the backward pass


def saving(steps: int, *, each: int, free_from: int | None = None) -> FakeRun:
    """One pass, with a save of 60 ms behind each so many steps, ended at the limit."""
    run = FakeRun()
    loader, optimizer = run.loader(length=10_000), run.optimizer()
    run.iterate(loader)
    for number in range(1, steps + 1):
        run.next(loader, 2 * MS)
        run.learn(optimizer, forward=4 * MS)
        if number % each == 0:
            run.leaf(Kind.CHECKPOINT_SAVE, 60 * MS)
        if number == free_from:
            run.mark(Kind.FREE_DATA, site=loader, value=number)
    run.mark(Kind.LIMIT, value=1)
    return run


@pytest.mark.parametrize(
    ("trial", "steps", "each", "mean_s"),
    [
        *((baseline(), steps, 50, STEP_S) for steps in (99, 101, 260)),
        *((baseline(), steps, 2, STEP_S) for steps in (60, 61)),
        (baseline(), 60, 1, STEP_S + 0.060),  # what each step saves stays a part of it
        (ceiling((SITE,), None), 260, 50, STEP_S - 0.002),
    ],
)
def test_however_many_saves_a_run_holds_it_is_as_fast(tmp_path, trial, steps, each, mean_s):
    free_from = 60 if trial.data == "free" else None
    run = read_of(trial, saving(steps, each=each, free_from=free_from), tmp_path)
    for pace in (run.pace, run.training_pace):
        assert pace.mean_s == pytest.approx(mean_s, rel=0.01)


def test_what_saves_take_is_known_and_no_part_of_a_part(tmp_path):
    run = read_of(baseline(), saving(260, each=20), tmp_path)
    assert run.saves_s == pytest.approx(0.060 / 20, rel=0.1)
    assert run.saves_share() == pytest.approx(run.saves_s / (STEP_S + run.saves_s), rel=0.01)
    assert run.up_to(120).pace.mean_s == pytest.approx(STEP_S, rel=0.01)


def test_too_few_steps_beside_the_saves_are_too_few(tmp_path):
    run = read_of(baseline(), saving(10, each=2), tmp_path)
    assert (run.outcome, run.pace) == (TOO_FEW_STEPS, None)


# -- its notes: nothing in a recording is trusted


def run_that_trains(pid: int = 4242) -> FakeRun:
    run = FakeRun(pid=pid)
    run.learn(run.optimizer())
    return run


def test_the_last_note_of_each_kind_counts(tmp_path):
    run = run_that_trains()
    run.text(Topic.TRIAL, {"applied": {"a": 1, "b": True}, "refused": {}})
    run.text(Topic.TRIAL, {"written": ["logs/x"], "was_there": True})
    run.text(Topic.TRIAL, {"applied": {"a": 1}, "refused": {"b": "gone"}})
    run.text(Topic.TRIAL, {"losses": [0.5, None, 2]})
    run.text(Topic.TRIAL, {"written": ["y"], "was_there": False})
    notes = read_trial_notes(run.write(tmp_path))
    assert (notes.applied, notes.refused) == ({"a": 1}, {"b": "gone"})
    assert notes.losses[::2] == (0.5, 2.0)
    assert math.isnan(notes.losses[1])
    assert notes.written == {"logs/x": True, "y": False}


def test_other_processes_tell_only_what_they_wrote(tmp_path):
    run = run_that_trains()
    run.text(Topic.TRIAL, {"applied": {"a": 1}, "refused": {}})
    run.write(tmp_path)
    worker = FakeRun(pid=5, role="child", header={"ppid": 4242, "ancestors": [4242]})
    worker.text(Topic.TRIAL, {"applied": {}, "refused": {"a": "no"}})
    worker.text(Topic.TRIAL, {"losses": [1.0]})
    worker.text(Topic.TRIAL, {"written": ["of a worker"]})
    notes = read_trial_notes(worker.write(tmp_path, script_pid=4242))
    assert (notes.applied, notes.refused, notes.losses) == ({"a": 1}, {}, ())
    assert notes.written == {"of a worker": False}


def test_damaged_notes(tmp_path):
    run = run_that_trains()
    for wrong in (7, {"applied": 3, "refused": [], "losses": "none", "written": 1}):
        run.text(Topic.TRIAL, wrong)
    run.text(Topic.TRIAL, {"losses": ["x", True], "refused": {"a": 3}})
    notes = read_trial_notes(run.write(tmp_path))
    assert (notes.applied, notes.refused, notes.written) == ({}, {"a": "3"}, {})
    assert [*map(math.isnan, notes.losses)] == [True, True]


# -- its errors


RAISED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("ValueError: no")
"""


@pytest.mark.parametrize(
    ("written", "exception", "words"),
    [
        (f"{RAISED}ValueError: 3 is odd\n", "ValueError", "ValueError: 3 is odd"),
        (f"{RAISED}ValueError: first\nsecond line\n\n", "ValueError", "ValueError: first"),
        (f"{RAISED}torch.cuda.OutOfMemoryError: 2 GiB\n", "OutOfMemoryError", "2 GiB"),
        (
            f"{RAISED}KeyError: Caught KeyError in DataLoader worker process 0.\n"
            f"Original {RAISED}KeyError: 'x'\n",
            "KeyError",
            "KeyError: 'x'",
        ),
        (f"{RAISED}RuntimeError: of another\n", "ValueError", None),
        (f"{RAISED}RuntimeError: caught by it\nbye\n", None, "RuntimeError: caught by it"),
        ("usage: s.py [-h]\ns.py: error: no such option\n", None, "s.py: error: no such option"),
        ("  \n\n", None, None),
        (None, None, None),
        (f"ValueError: {'x' * 300}\n", "ValueError", f"ValueError: {'x' * 145}..."),
        ("x" * (1 << 17) + "\nValueError: late\udcff\n", "ValueError", "ValueError: late\ufffd"),
    ],
)
def test_the_line_that_tells(tmp_path, written, exception, words):
    if written is not None:
        (tmp_path / "stderr").write_bytes(written.encode("utf-8", "surrogateescape"))
    last = last_words(tmp_path, exception)
    assert last == words if words is None else last.endswith(words)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSPC, errno.EROFS, errno.EOVERFLOW])
@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno {number}] another language's words: 'runs/last' -> 'runs/old'",
        "safetensors_rust.SafetensorError: another language's words (os error {number})",
        "RuntimeError: unable to write to file </data/x>: {message} ({number})",
    ],
)
def test_a_refusal_is_known_by_what_python_rust_and_c_say(number, line):
    errors = f"{RAISED}{line.format(number=number, message=os.strerror(number))}\n"
    assert f"({errno.errorcode[number]})" in refusal_in(errors)


@pytest.mark.parametrize(
    "errors",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
        "BlockingIOError: [Errno 180] no such number",
        "ValueError: epoch 18, batch 28, class 30 of 75",
    ],
)
def test_other_errors_are_the_scripts_own(errors):
    assert refusal_in(errors) is None
