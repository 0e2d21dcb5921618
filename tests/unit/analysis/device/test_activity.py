"""What a device did, worked out from marks in its stream, against planted truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.device_run import DeviceRun, Stream, trained
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.device.activity import Marks
from trainprof.record.schema import Kind, Topic, TransferFlag

STEPS = 60
POINTS = 0.03

WORK = (4 * MS, 8 * MS, 2 * MS)
PHASES = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP)


def fed_after(data: int, *, launch: int = 200 * US, waits: bool = False, ahead: int | None = None):
    """A training of 14 ms of work a step, and `data` ns for each batch."""

    def step(run: DeviceRun, _: int) -> None:
        run.next(data)
        run.learn(*WORK, launch=launch)
        if waits:
            run.item()

    run = DeviceRun()
    run.ahead = ahead
    return trained(step, 40, run)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(fed_after(60 * MS), id="starved"),
        pytest.param(fed_after(14 * MS), id="half starved"),
        pytest.param(fed_after(100 * US, waits=True), id="waited for at each step"),
        pytest.param(fed_after(100 * US, ahead=28 * MS), id="ahead by two steps"),
    ],
)
def test_busy_share_phases_and_queue_are_the_devices(tmp_path: Path, run: DeviceRun) -> None:
    [device] = run.run.summary(tmp_path).devices
    low, high = device.busy_share
    assert low - POINTS <= run.busy_share() <= high + POINTS
    assert high - low < 0.25
    for phase, ns in zip(("forward", "backward", "optimizer"), WORK, strict=True):
        assert device.per_step_s[phase] == pytest.approx(ns / 1e9, rel=0.06), phase
    if run.ahead:
        assert device.queue_delay_s[0] > 0.015


def test_waits_that_the_device_does_not_feel_are_no_bottleneck(tmp_path: Path) -> None:
    """The host waits for data most of the time, and the device has work before it all along."""
    run = fed_after(13 * MS, launch=10 * US, ahead=28 * MS)
    assert run.busy_share() > 0.95
    assert run.run.summary(tmp_path).verdict.bottleneck == "compute"


def test_of_several_devices_and_without_marks_none_is_known(tmp_path: Path) -> None:
    """One that waits for another has not reached its marks either."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    stream = Stream(run)
    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader)
        stream.mark()
        stream.gets(MS)
        run.leaf(Kind.TRANSFER, 10 * US, site=run.site(50), flags=TransferFlag.D2D, value=8)
        run.update(optimizer)
    run.stop(loader)
    several = run.summary(tmp_path)
    assert several.devices is None
    assert "devices" in several.not_observed
    plain = FakeRun()
    plain.train_pass(plain.loader(), plain.optimizer(), 30)
    assert plain.summary(tmp_path / "plain").devices is None


def marks(*rows: tuple[int, int, int]) -> Marks:
    columns = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Marks(*columns)


def test_when_marks_were_reached_is_bounded_by_all_of_a_stretch() -> None:
    """The second was reached as it was put, the third as it was seen."""
    early, late = marks((0, 900, 0), (500, 900, 200), (510, 1000, 690)).reached_ns()
    assert early.tolist() == [300, 500, 990]
    assert late.tolist() == [310, 510, 1000]
    # Bounds that cross meet in the middle.
    early, late = marks((0, 10, 0), (100, 110, 80)).reached_ns()
    assert early.tolist() == late.tolist() == [15, 95]


def test_what_autograds_own_thread_computes_again_is_told_by_its_marks(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    stream, of_autograd = Stream(run), Stream(run)
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader, 100 * US)
        for kind, cost in zip(PHASES, (4 * MS, 6 * MS, 2 * MS), strict=True):
            start = run.now
            stream.mark()
            run.passes_time(100 * US)
            if kind is Kind.BACKWARD:
                run.thread, begins = 1, run.now
                of_autograd.idle_from = stream.idle_from
                of_autograd.mark()
                run.passes_time(100 * US)
                stream.gets(3 * MS)
                of_autograd.idle_from = stream.idle_from
                ends = run.now
                of_autograd.mark()
                run.record(Kind.FORWARD, begins, ends, flags=LEARNS)
                run.thread = 0
            stream.gets(cost)
            end = run.now
            stream.mark()
            site = optimizer if kind is Kind.OPTIMIZER_STEP else 0
            run.record(kind, start, end, site=site, flags=LEARNS if kind is Kind.FORWARD else 0)
        stream.waits()
    run.stop(loader)
    [device] = run.summary(tmp_path).devices
    seconds = device.per_step_s
    assert seconds["recompute"] == pytest.approx(3e-3, rel=0.05)
    assert seconds["backward"] == pytest.approx(6e-3, rel=0.05)
