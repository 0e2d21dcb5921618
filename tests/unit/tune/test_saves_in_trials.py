"""Checkpoints inside passes are no part of what trials measure: each holds a few by chance."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cases import Planted, case_of
from support.events import MS, FakeRun

from trainprof.analysis.summary.tune import OK, TOO_FEW_STEPS
from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind
from trainprof.tune.candidate import Candidate, interval_without
from trainprof.tune.candidates import plan
from trainprof.tune.trial import Measured, Trial, baseline, ceiling
from trainprof.tune.trial_reading import read

SITE = "train.py:41"
STEP_S = 0.006 + 0.00035  # 2 ms of waiting, 4 ahead of the backward pass
FREE_S = 0.004 + 0.00035
SAVE = 60 * MS


def training(steps: int, *, save_each: int, free_from: int | None = None) -> FakeRun:
    """One pass, with a save of 60 ms behind each so many steps."""
    run = FakeRun()
    loader, optimizer = run.loader(length=10_000), run.optimizer()
    run.iterate(loader)
    for number in range(1, steps + 1):
        run.next(loader, 2 * MS)
        run.learn(optimizer, forward=4 * MS)
        if number % save_each == 0:
            run.leaf(Kind.CHECKPOINT_SAVE, SAVE)
        if number == free_from:
            run.mark(Kind.FREE_DATA, site=loader, value=number)
    return run


def measured(trial: Trial, run: FakeRun, directory: Path) -> Measured:
    run.mark(Kind.LIMIT, value=1)
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


def means_of(run: Measured) -> list[float]:
    assert run.pace is not None
    assert run.training_pace is not None
    return [run.pace.mean_s, run.training_pace.mean_s]


@pytest.mark.parametrize("steps", [99, 101, 130, 260])
def test_however_many_saves_a_run_holds_it_is_as_fast(tmp_path: Path, steps: int) -> None:
    run = measured(baseline(), training(steps, save_each=50), tmp_path)
    assert means_of(run) == pytest.approx([STEP_S, STEP_S], rel=0.01)
    assert run.pace is not None
    assert run.pace.steps_s is not None
    assert run.pace.steps_s.max() < 2 * STEP_S
    assert run.seen is not None
    assert run.seen.drift_beyond(steps // 2) == 0.0


def test_so_is_a_part_of_it(tmp_path: Path) -> None:
    part = measured(baseline(), training(260, save_each=50), tmp_path).up_to(120)
    assert means_of(part) == pytest.approx([STEP_S, STEP_S], rel=0.01)


def test_free_data_loses_them_as_well(tmp_path: Path) -> None:
    trial = ceiling((SITE,), None)
    run = measured(trial, training(260, save_each=50, free_from=60), tmp_path)
    assert means_of(run) == pytest.approx([FREE_S, FREE_S], rel=0.01)


def test_what_each_step_saves_stays_a_part_of_it(tmp_path: Path) -> None:
    run = measured(baseline(), training(60, save_each=1), tmp_path)
    assert means_of(run) == pytest.approx([STEP_S + 0.060] * 2, rel=0.01)
    assert run.saves_s == 0.0


@pytest.mark.parametrize("steps", [60, 61, 62, 63])
def test_a_save_at_each_other_step_is_left_out_of_every_run(tmp_path: Path, steps: int) -> None:
    run = measured(baseline(), training(steps, save_each=2), tmp_path)
    assert means_of(run) == pytest.approx([STEP_S, STEP_S], rel=0.01)


def test_too_few_steps_beside_the_saves_are_too_few(tmp_path: Path) -> None:
    run = measured(baseline(), training(30, save_each=2), tmp_path)
    assert (run.outcome, run.pace) == (TOO_FEW_STEPS, None)
    assert (run.detail or "").startswith("steady steps: 1")


def test_what_they_take_is_known(tmp_path: Path) -> None:
    run = measured(baseline(), training(260, save_each=20), tmp_path)
    assert run.saves_s == pytest.approx(0.060 / 20, rel=0.1)
    share = run.saves_s / (STEP_S + run.saves_s)
    assert run.saves_share() == pytest.approx(share, rel=0.01)


def test_forecasts_are_of_steps_without_them() -> None:
    # Of 10 s save 2, and 8 are 4 of loading and 4 of training: what halves loading makes 8 to 6.
    assert interval_without((10 / 8, 10 / 6), 0.2) == pytest.approx((8 / 6, 8 / 4))
    assert interval_without((1.0, 1.25), 0.2) == pytest.approx((1.0, 8 / 6))
    assert interval_without((1.5, 2.0), 0.0) == (1.5, 2.0)
    assert interval_without(None, 0.2) is None
    # What all but the saves is nothing of has its bound as anywhere.
    assert interval_without((1.0, 50.0), 0.2) == pytest.approx((1.0, 100.0))
    hoped = Candidate("threads", {"torch_threads": 1}, None, hope=1.25).without_saves(0.2)
    assert (hoped.predicted, hoped.hope) == (None, pytest.approx(8 / 6))


def test_a_plan_tells_all_its_forecasts_so() -> None:
    case = case_of(Planted(workers=0, fetch_s=0.03))
    plain, without = plan(case), plan(case, saves=0.2)
    assert without.ceiling == interval_without(plain.ceiling, 0.2)
    assert plain.alone is not None
    assert without.alone == pytest.approx((plain.alone[0] * 0.8, plain.alone[1] * 0.8))
    assert [one.predicted for one in without.candidates] == [
        interval_without(one.predicted, 0.2) for one in plain.candidates
    ]
