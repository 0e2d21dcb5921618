"""The pace on free data and of a loader alone, against recordings in which it is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.device_run import DeviceRun
from support.events import MS, US, FakeRun
from support.trials import free_pace_in

from trainprof.analysis.pipeline.trial_pace import FreeSteps, alone_pace, free_pace, free_steps
from trainprof.analysis.timeline.step_series import read_recorded_steps
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, TransferFlag

STEP_S = 0.004


def run_with_free_data(directory, *, switch=True, copies=700 * US, free_epochs=4) -> RunDirectory:
    """A first pass of slow batches, then passes whose batches are copies; steps of 4 ms."""
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2, prefetch_factor=2), run.optimizer()
    evaluator = run.loader(line=60)
    for number in range(1 + free_epochs):
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


@pytest.mark.parametrize("copies", [700 * US, 9 * MS])
def test_the_time_of_copies_is_taken_out_and_real_steps_are_left_out(tmp_path, copies):
    pace = free_pace_in(run_with_free_data(tmp_path, copies=copies))
    assert np.allclose(pace.steps_s, STEP_S)
    assert pace.mean_s == pytest.approx(STEP_S)
    # The first step of each epoch is at its border.
    assert (len(pace.steps_s), pace.cycle) == (4 * 29, 1)


def test_a_trial_on_free_data_tells_from_which_step_on(tmp_path: Path) -> None:
    training = summarize(run_with_free_data(tmp_path)).training
    assert 0 < training.free_from_step < training.steps
    assert (training.samples, training.samples_per_s) == (None, None)


def test_without_free_data_or_a_step_on_it_there_is_no_such_pace(tmp_path: Path) -> None:
    plain = run_with_free_data(tmp_path / "plain", switch=False)
    assert free_pace_in(plain) is None
    assert summarize(plain).training.free_from_step is None
    assert free_pace_in(run_with_free_data(tmp_path / "none", free_epochs=0)) is None
    empty = RunDirectory(tmp_path / "empty")
    empty.create()
    assert free_pace_in(empty) is None
    assert alone_pace(empty) is None


def alone(directory: Path, epochs: list[int], *, workers: int = 2, start: int = 0) -> RunDirectory:
    """A loader alone: the first `start` batches of a pass are there at once, then 5 ms each."""
    run = FakeRun()
    other = run.loader(line=7)
    run.iterate(other)
    run.next(other, 50 * MS)
    loader = run.loader(line=41, num_workers=workers, prefetch_factor=2)
    for count in epochs:
        run.iterate(loader, 80 * MS)
        for number in range(count):
            run.next(loader, 10 * US if number < start else 5 * MS)
        run.stop(loader, 20 * MS)
    return run.write(directory)


@pytest.mark.parametrize(
    ("epochs", "workers", "start", "steps", "mean_s"),
    [
        # 2 workers, 2 batches ahead each: the first 2 * 4 + 2 of an epoch are left out.
        ([60], 2, 10, 50, 0.005),
        ([40, 40], 2, 10, 60, 0.005),
        # Of short epochs starts are part of the pace: 28 batches after the first two, 9 starts.
        ([3] * 10, 0, 0, 28, 0.005 + 9 * 0.1 / 28),
    ],
)
@pytest.mark.parametrize("sites", [(), ("train.py:41",)])
def test_the_start_of_an_epoch_is_no_pace(tmp_path, sites, epochs, workers, start, steps, mean_s):
    directory = alone(tmp_path, epochs, workers=workers, start=start)
    pace = alone_pace(directory, sites)
    assert (len(pace.steps_s), pace.cycle) == (steps, max(workers, 1))
    assert pace.mean_s == pytest.approx(mean_s)
    assert alone_pace(directory, ["train.py:99"]) is None


# Where a device works during the copies

KEPT, FREE = 8, 60
COPY = 25 * MS
WORK = (40 * MS, 50 * MS, 10 * MS)
# Launches beside it, and marks.
HOST_S = 0.0012
# By which the device's clock may be off.
CLOCK_S = 0.00005


def full_queue(run: DeviceRun, copy: int) -> None:
    """The device is what takes the time; the host may be a step and a half ahead of it."""
    run.next(copy)
    run.learn(*WORK)
    run.run.passes_time(max(run.stream.idle_from - run.run.now - 150 * MS, 0))


def value_each_step(run: DeviceRun, copy: int) -> None:
    run.next(copy)
    run.learn(*WORK)
    run.item()


def slow_host(run: DeviceRun, copy: int) -> None:
    """The device works while the copy is made; without it, it would while Python runs."""
    run.next(copy)
    run.python(30 * MS)
    run.learn(10 * MS, 8 * MS, 2 * MS)


def partly_hidden(run: DeviceRun, copy: int) -> None:
    """10 of the copy's 25 ms are hidden: without it a step takes what the device does, 40 ms."""
    run.next(copy)
    run.learn(10 * MS, 20 * MS, 10 * MS, launch=10 * MS)


Step = Callable[[DeviceRun, int], None]


def trained(step: Step, copy: int = COPY) -> DeviceRun:
    run = DeviceRun()
    run.start()
    for _ in range(KEPT):
        step(run, 30 * MS)
    run.run.mark(Kind.FREE_DATA, site=run.loader, value=KEPT)
    for _ in range(FREE):
        step(run, copy)
    run.stop()
    return run


def steps_and_pace(run: DeviceRun, directory: Path) -> tuple[FreeSteps, float]:
    """Returns the free steps, and what one takes, s."""
    free = free_steps(read_recorded_steps(run.run.write(directory)))
    return free, free_pace(free.table).mean_s


@pytest.mark.parametrize(
    ("step", "without_s"),
    [
        (full_queue, 0.100),
        (value_each_step, 0.100),
        (slow_host, 0.030),
        (partly_hidden, 0.040),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_no_more_is_taken_out_than_the_device_waited(step, without_s, tmp_path):
    free, mean_s = steps_and_pace(trained(step), tmp_path)
    assert without_s - CLOCK_S <= mean_s <= without_s + HOST_S
    assert not free.is_least
    # In that one batches became free.
    assert free.first == KEPT + 1


def with_a_second_device(run: DeviceRun) -> DeviceRun:
    run.run.leaf(Kind.TRANSFER, 10 * US, site=run.run.site(80), flags=TransferFlag.D2D)
    return run


@pytest.mark.parametrize(("copy", "is_least"), [(COPY, True), (MS, False)])
def test_where_devices_wait_for_one_another_nothing_is_taken_out(tmp_path, copy, is_least):
    free, mean_s = steps_and_pace(with_a_second_device(trained(value_each_step, copy)), tmp_path)
    assert 0.100 + copy / 1e9 <= mean_s <= 0.100 + copy / 1e9 + HOST_S
    assert free.is_least is is_least
