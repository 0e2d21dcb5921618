"""What a trial's directory tells, against recordings in which it is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.summary.tune import NOT_APPLIED, OK
from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind, Topic
from trainprof.tune.trial import Measured, Trial, baseline, ceiling, loader_alone
from trainprof.tune.trial_reading import read

SITE = "train.py:41"
EACH = 40
START = 80 * MS


def training(passes: int, *, kept: int | None = None) -> FakeRun:
    """Passes of 40 steps: 6 ms at first, 12 from the fifth pass on, each behind a start of 80 ms.

    Batches take 2 ms, and grow with each pass; `kept`: they are free after so many passes.
    """
    run = FakeRun()
    loader, optimizer = run.loader(length=EACH), run.optimizer()
    for number in range(passes):
        run.iterate(loader, START)
        for _ in range(EACH):
            start = run.now
            run.next(loader, 2 * MS, samples=8)
            run.record(Kind.FETCH_BATCH, start, start, site=1, value=1000 * (number + 1), flags=1)
            run.learn(optimizer, forward=4 * MS if number < 4 else 10 * MS)
        if kept is not None and number + 1 == kept:
            run.mark(Kind.FREE_DATA, site=loader, value=EACH)
        run.stop(loader)
    return run


LEARN_S = 0.00035


def measured(trial: Trial, run: FakeRun, directory: Path) -> Measured:
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


def test_a_part_of_a_run_is_as_a_run_that_was_ended_there(tmp_path: Path) -> None:
    whole = measured(baseline(), training(8), tmp_path / "whole")
    short = measured(baseline(), training(4), tmp_path / "short")
    part = whole.up_to(4 * EACH)
    assert whole.pace is not None
    assert part.pace is not None
    assert short.pace is not None
    assert whole.pace.mean_s > 1.3 * short.pace.mean_s
    assert part.pace.mean_s == pytest.approx(short.pace.mean_s) == pytest.approx(0.006 + LEARN_S)
    # Ended within a training, it counts the starts of later passes, as that would.
    assert part.training_pace is not None
    assert part.training_pace.mean_s == pytest.approx(0.006 + LEARN_S + 0.080 / EACH, rel=0.02)
    assert whole.up_to(8 * EACH) is whole
    assert whole.up_to(5).pace is None


def test_free_steps_are_numbered_as_those_of_the_run(tmp_path: Path) -> None:
    free = measured(ceiling((SITE,), None), training(8, kept=2), tmp_path)
    assert free.seen is not None
    assert (free.seen.first, free.seen.until) == (2 * EACH, 8 * EACH)
    part = free.up_to(4 * EACH)
    assert part.pace is not None
    assert part.pace.mean_s == pytest.approx(0.004 + LEARN_S)
    assert free.seen.drift_beyond(4 * EACH) > 0.5
    assert not free.is_least


@pytest.mark.parametrize(
    ("notes", "outcome", "detail"),
    [
        ([{"applied": {"data": "alone"}, "refused": {}}], OK, None),
        (
            [{"applied": {}, "refused": {"data": "not on the main thread"}}],
            NOT_APPLIED,
            "not on the main thread",
        ),
        # Killed before it could tell.
        ([], NOT_APPLIED, "it was never drawn without training"),
    ],
)
def test_a_loader_alone_is_measured_only_where_it_was_drawn_alone(
    tmp_path: Path, notes: list[dict[str, Any]], outcome: str, detail: str | None
) -> None:
    run = training(2)
    for note in notes:
        run.text(Topic.TRIAL, note)
    found = measured(loader_alone((SITE,)), run, tmp_path)
    assert (found.outcome, found.detail, found.is_ok) == (outcome, detail, outcome == OK)


def test_free_data_that_never_came_says_why(tmp_path: Path) -> None:
    run = training(2)
    run.text(Topic.TRIAL, {"applied": {}, "refused": {"data": "no pass was long enough"}})
    found = measured(ceiling((SITE,), None), run, tmp_path)
    assert (found.outcome, found.detail) == (NOT_APPLIED, "no pass was long enough")


def test_how_large_batches_are_is_told_by_line(tmp_path: Path) -> None:
    found = measured(baseline(), training(4), tmp_path).batches
    assert found == {SITE: 2500}
