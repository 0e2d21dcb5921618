"""The pace on free data and of a loader alone, against recordings in which it is planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.events import MS, US, FakeRun
from support.trials import free_pace_in

from trainprof.analysis.pipeline.trial_pace import alone_pace
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

STEP_S = 0.004


def run_with_free_data(
    directory: Path, *, switch: bool = True, copies: int = 700 * US, free_passes: int = 4
) -> RunDirectory:
    """A first pass of slow batches, then passes whose batches are copies; steps of 4 ms."""
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2, prefetch_factor=2), run.optimizer()
    evaluator = run.loader(line=60)
    for number in range(1 + free_passes):
        is_free = switch and number > 0
        with run.span(Kind.LOADER_INIT, site=loader):
            run.passes_time(3 * MS)
            run.leaf(Kind.LOADER_RESET, 2 * MS, site=loader)  # inside: counts once
        run.yielded[loader] = 0
        for _ in range(30):
            run.next(loader, copies if is_free else 20 * MS)
            run.learn(optimizer, forward=1 * MS, backward=2 * MS, update=1 * MS)
        if switch and number == 0:
            run.mark(Kind.FREE_DATA, site=loader, value=30)
        run.stop(loader, 30 * MS)
        run.evaluation_pass(evaluator, 3)
    return run.write(directory)


def test_the_time_of_copies_is_taken_out_and_real_steps_are_left_out(tmp_path: Path) -> None:
    pace = free_pace_in(run_with_free_data(tmp_path))
    assert pace is not None
    assert pace.steps_s is not None
    assert np.allclose(pace.steps_s, STEP_S)
    assert pace.mean_s == pytest.approx(STEP_S)
    # The first step of each pass is at its border.
    assert len(pace.steps_s) == 4 * 29
    assert pace.cycle == 1


def test_copies_that_take_longer_change_nothing(tmp_path: Path) -> None:
    pace = free_pace_in(run_with_free_data(tmp_path, copies=9 * MS))
    assert pace is not None
    assert pace.mean_s == pytest.approx(STEP_S)


def test_where_starts_of_passes_have_to_count_they_are_taken_out_too(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.train_pass(loader, optimizer, 3, wait=20 * MS)
    run.mark(Kind.FREE_DATA, site=loader, value=3)
    for _ in range(6):
        run.iterate(loader, 5 * MS)
        for _ in range(3):
            run.next(loader, 1 * MS)
            run.learn(optimizer, forward=1 * MS, backward=2 * MS, update=1 * MS)
        run.stop(loader, 5 * MS)
    pace = free_pace_in(run.write(tmp_path))
    assert pace is not None
    assert pace.mean_s == pytest.approx(STEP_S)


def test_a_trial_on_free_data_tells_from_which_step_on(tmp_path: Path) -> None:
    told = summarize(run_with_free_data(tmp_path)).training
    assert told.free_from_step is not None
    assert 0 < told.free_from_step < told.steps
    assert (told.samples, told.samples_per_s) == (None, None)


def test_other_runs_have_no_such_step(tmp_path: Path) -> None:
    assert summarize(run_with_free_data(tmp_path, switch=False)).training.free_from_step is None


def test_a_loader_of_evaluation_that_became_free_later_counts_for_nothing(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    evaluator = run.loader(line=60)
    run.train_pass(loader, optimizer, 30, wait=20 * MS)
    run.mark(Kind.FREE_DATA, site=loader, value=30)
    run.train_pass(loader, optimizer, 30, wait=1 * MS)
    run.evaluation_pass(evaluator, 3)
    run.mark(Kind.FREE_DATA, site=evaluator, value=3)
    pace = free_pace_in(run.write(tmp_path))
    assert pace is not None
    assert pace.steps_s is not None
    assert len(pace.steps_s) >= 28


def test_without_free_data_there_is_no_such_pace(tmp_path: Path) -> None:
    assert free_pace_in(run_with_free_data(tmp_path, switch=False)) is None


def test_nor_without_a_step_after_it_nor_without_events(tmp_path: Path) -> None:
    assert free_pace_in(run_with_free_data(tmp_path, free_passes=0)) is None
    empty = RunDirectory(tmp_path / "empty")
    empty.create()
    assert free_pace_in(empty) is None
    assert alone_pace(empty) is None


def alone(directory: Path, passes: list[int], *, workers: int = 2, start: int = 0) -> RunDirectory:
    """A loader alone: the first `start` batches of a pass are there at once, then 5 ms each."""
    run = FakeRun()
    other = run.loader(line=7)
    run.iterate(other)
    run.next(other, 50 * MS)
    loader = run.loader(line=41, num_workers=workers, prefetch_factor=2)
    for count in passes:
        run.iterate(loader, 80 * MS)
        for number in range(count):
            run.next(loader, 10 * US if number < start else 5 * MS)
        run.stop(loader, 20 * MS)
    return run.write(directory)


@pytest.mark.parametrize("sites", [(), ("train.py:41",)])
def test_the_start_of_a_pass_is_no_pace(tmp_path: Path, sites: tuple[str, ...]) -> None:
    # 2 workers, 2 batches ahead each: the first 2 * 4 + 2 are left out.
    pace = alone_pace(alone(tmp_path, [60], start=10), sites)
    assert pace is not None
    assert pace.steps_s is not None
    assert np.allclose(pace.steps_s, 0.005)
    assert (len(pace.steps_s), pace.cycle) == (50, 2)


def test_each_pass_has_a_start(tmp_path: Path) -> None:
    pace = alone_pace(alone(tmp_path, [40, 40], start=10))
    assert pace is not None
    assert pace.steps_s is not None
    assert (len(pace.steps_s), pace.mean_s) == (60, pytest.approx(0.005))


def test_of_short_passes_the_starts_are_part_of_the_pace(tmp_path: Path) -> None:
    pace = alone_pace(alone(tmp_path, [3] * 10, workers=0))
    assert pace is not None
    # Each further pass costs 100 ms besides: 28 batches after the first two, 9 starts.
    assert pace.mean_s == pytest.approx(0.005 + 9 * 0.1 / 28)


def test_another_line_has_no_pace(tmp_path: Path) -> None:
    assert alone_pace(alone(tmp_path, [60]), ["train.py:99"]) is None
