"""What copies of batches cost where a device works meanwhile: against planted trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.device_run import DeviceRun
from support.events import MS, US

from trainprof.analysis.pipeline.trial_pace import FreeSteps, free_pace, free_steps
from trainprof.analysis.timeline.step_series import read_recorded_steps
from trainprof.record.schema import Kind, TransferFlag

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


def value_now_and_then(run: DeviceRun, copy: int) -> None:
    full_queue(run, copy)
    if run.run.yielded[run.loader] % 10 == 0:
        run.item()


def slow_host(run: DeviceRun, copy: int) -> None:
    """The device works while the copy is made; without it, it would while Python runs."""
    run.next(copy)
    run.python(30 * MS)
    run.learn(10 * MS, 8 * MS, 2 * MS)


def slow_launches(run: DeviceRun, copy: int) -> None:
    run.next(copy)
    run.learn(3 * MS, 6 * MS, 1 * MS, launch=10 * MS, pieces=10)


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


def of(run: DeviceRun, directory: Path) -> tuple[FreeSteps, float]:
    """Returns the free steps, and what one takes, s."""
    recorded = read_recorded_steps(run.run.write(directory))
    assert recorded is not None
    free = free_steps(recorded)
    assert free is not None
    pace = free_pace(free.table)
    assert pace is not None
    return free, pace.mean_s


@pytest.mark.parametrize(
    ("step", "without_s"),
    [
        (full_queue, 0.100),
        (value_each_step, 0.100),
        (value_now_and_then, 0.100),
        (slow_host, 0.030),
        (slow_launches, 0.030),
        (partly_hidden, 0.040),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_no_more_is_taken_out_than_the_device_waited(
    step: Step, without_s: float, tmp_path: Path
) -> None:
    free, mean_s = of(trained(step), tmp_path)
    assert without_s - CLOCK_S <= mean_s <= without_s + HOST_S
    assert not free.is_least
    # In that one batches became free.
    assert free.first == KEPT + 1


def with_a_second_device(run: DeviceRun) -> DeviceRun:
    run.run.leaf(Kind.TRANSFER, 10 * US, site=run.run.site(80), flags=TransferFlag.D2D)
    return run


def test_where_devices_wait_for_one_another_nothing_is_taken_out(tmp_path: Path) -> None:
    free, mean_s = of(with_a_second_device(trained(value_each_step)), tmp_path)
    assert 0.125 <= mean_s <= 0.125 + HOST_S
    assert free.is_least


def test_copies_that_take_next_to_nothing_leave_no_doubt(tmp_path: Path) -> None:
    free, _ = of(with_a_second_device(trained(value_each_step, MS)), tmp_path)
    assert not free.is_least
