"""Memory of a device against what was planted: peaks by phase, growth and its controls, retries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.events import LEARNS, MS, US, FakeRun
from support.fake_memory import GIB, MIB

from trainprof.analysis.summary.device import DeviceMemory
from trainprof.record.schema import Kind, MemoryFigure, Topic

STEPS = 120
WEIGHTS = 2 * GIB
COST_NS = 40_000
LIMIT = 80 * GIB


class Memory:
    """Writes readings as the probe does: whole at the begin of a burst, then what changed."""

    def __init__(self, run: FakeRun, index: int = 0, **extra: int) -> None:
        self.run, self.index = run, index
        self.allocated = self.reserved = self.peak = 0
        self.extra = {MemoryFigure[name.upper()]: value for name, value in extra.items()}
        self.keeps_peak = True
        self.known: dict[MemoryFigure, int] = {}

    def use(self, size: int, *, reserved: int | None = None) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, reserved or self.allocated)

    def read(self, at: int | None = None) -> None:
        at = self.run.now if at is None else at
        figures = {
            MemoryFigure.ALLOCATED: self.allocated,
            MemoryFigure.RESERVED: self.reserved,
            **self.extra,
        }
        if self.keeps_peak:
            figures[MemoryFigure.PEAK_ALLOCATED] = self.peak
            figures[MemoryFigure.PEAK_RESERVED] = self.reserved
        if not self.known:
            self._write(at, MemoryFigure.BURST, 0)
        for figure, value in figures.items():
            if figure == MemoryFigure.ALLOCATED or self.known.get(figure) != value:
                self._write(at, figure, value)
        self.known = figures

    def pause(self) -> None:
        self.known = {}

    def _write(self, at: int, figure: MemoryFigure, value: int) -> None:
        end = at if figure == MemoryFigure.BURST else at + COST_NS
        where = {"site": self.index, "value": value, "flags": figure}
        self.run.record(Kind.DEVICE_MEMORY, at, end, **where)


def train(
    run: FakeRun,
    memory: Memory,
    *,
    kept: Callable[[int], int] = lambda step: 0,
    steps: int = STEPS,
    read_every: int = 1,
) -> None:
    """Steps whose forward and backward need memory for a while; `kept(step)` stays after each."""
    forward, backward = 300 * MIB, 200 * MIB
    loader, optimizer = run.loader(), run.optimizer()
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    memory.use(WEIGHTS)
    run.iterate(loader)
    base = memory.allocated
    for step in range(steps):
        reads = step % read_every == 0
        if not reads:
            memory.pause()
        run.next(loader)

        def phase(kind: Kind, before: int, after: int, reads: bool = reads, **record: int) -> None:
            if reads:
                memory.read()
            with run.span(kind, **record):
                memory.use(before)
                run.passes_time(2 * MS)
                memory.use(after)
                end = run.now
            if reads:
                memory.read(end)

        phase(Kind.FORWARD, forward, 0, flags=LEARNS)
        run.passes_time(US)
        phase(Kind.BACKWARD, backward, -forward)
        memory.use(-backward)
        memory.use(base + kept(step) - memory.allocated)
        run.passes_time(US)
        phase(Kind.OPTIMIZER_STEP, 0, 0, site=optimizer)
    run.stop(loader)


def memory_of(directory: Path, **how: Any) -> DeviceMemory:
    run = FakeRun()
    train(run, Memory(run, limit=LIMIT, retries=0, out_of_memory=0), **how)
    (device,) = run.summary(directory).devices
    return device.memory


def test_peaks_are_the_allocators_own(tmp_path: Path) -> None:
    memory = memory_of(tmp_path)
    assert memory.peak_allocated_bytes == memory.peak_reserved_bytes == WEIGHTS + 500 * MIB
    assert memory.limit_bytes == LIMIT
    assert memory.readings == 6 * STEPS
    assert memory.between_steps_bytes == WEIGHTS
    assert memory.not_observed == {}


def noise(scale: int) -> Callable[[int], int]:
    values = np.random.default_rng(7).integers(0, scale, 2 * STEPS)
    return lambda step: int(values[step])


@pytest.mark.parametrize(
    ("kept", "per_step"),
    [
        pytest.param(lambda step: step * 2 * MIB, 2 * MIB, id="each step keeps 2 MiB"),
        pytest.param(lambda step: step * MIB + noise(8 * MIB)(step), MIB, id="with noise"),
        pytest.param(lambda step: step // 10 * 20 * MIB, 2 * MIB, id="every tenth keeps 20 MiB"),
    ],
)
def test_growth_is_told_with_its_slope(
    tmp_path: Path, kept: Callable[[int], int], per_step: int
) -> None:
    memory = memory_of(tmp_path, kept=kept, read_every=3)
    assert memory.is_growing
    assert memory.growth_bytes_per_step == pytest.approx(per_step, rel=0.1)
    assert 90 < (memory.growth_steps or 0) < STEPS


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda step: 0, id="none"),
        pytest.param(lambda step: step % 10 * 50 * MIB, id="saw-tooth"),
        pytest.param(lambda step: (step + 30) % 90 * 10 * MIB, id="one that falls once"),
        pytest.param(noise(500 * MIB), id="batches of any size"),
        pytest.param(lambda step: 500 * MIB * (step > 60), id="one thing more from a step on"),
        pytest.param(lambda step: step * 100, id="100 bytes a step"),
    ],
)
def test_what_is_no_growth_is_not_told(tmp_path: Path, kept: Callable[[int], int]) -> None:
    memory = memory_of(tmp_path, kept=kept)
    assert memory.is_growing is False


@pytest.mark.parametrize(("steps", "read_every"), [(45, 1), (STEPS, 10)])
def test_of_few_steps_or_readings_no_growth_is_known(
    tmp_path: Path, steps: int, read_every: int
) -> None:
    memory = memory_of(tmp_path, kept=lambda step: step * GIB, steps=steps, read_every=read_every)
    assert memory.is_growing is None
    assert memory.growth_bytes_per_step is None
    assert "fewer than" in memory.not_observed["growth_bytes_per_step"]


def test_counts_go_on_and_without_a_peak_the_highest_reading_is_one(tmp_path: Path) -> None:
    run = FakeRun()
    memory = Memory(run, retries=2, out_of_memory=0)
    memory.keeps_peak = False
    memory.read()
    for retries, errors in ((5, 0), (0, 1), (4, 0)):  # the script sets them back
        memory.extra = {MemoryFigure.RETRIES: retries, MemoryFigure.OUT_OF_MEMORY: errors}
        memory.read()
    train(run, memory)
    (device,) = run.summary(tmp_path).devices
    assert (device.memory.retries, device.memory.out_of_memory_errors) == (9, 1)
    assert device.memory.is_peak_sampled
    assert device.memory.peak_allocated_bytes == WEIGHTS + 300 * MIB


def test_each_device_and_each_part_of_a_run_has_its_own(tmp_path: Path) -> None:
    run = FakeRun()
    first, second = Memory(run, limit=LIMIT), Memory(run, 3)
    second.use(7 * GIB)
    second.read()
    train(run, first)
    second.pause()
    second.read()
    devices = run.summary(tmp_path).devices
    peaks = [(device.name, device.memory.peak_allocated_bytes) for device in devices]
    assert peaks == [("cuda:0", WEIGHTS + 500 * MIB), ("cuda:3", 7 * GIB)]
    part = run.summary(tmp_path, steps=(0, 10)).devices[0].memory
    assert devices[0].memory.readings == 6 * STEPS
    assert part.readings == pytest.approx(60, abs=1)
    assert part.limit_bytes == LIMIT


def test_a_torn_log_tells_less_and_breaks_nothing(tmp_path: Path) -> None:
    run = FakeRun()
    memory = Memory(run, limit=LIMIT)
    train(run, memory)
    whole = run.records
    rng = np.random.default_rng(3)
    for _ in range(20):
        run.records = [record for record in whole if rng.random() > 0.3]
        (device,) = run.summary(tmp_path).devices
        assert WEIGHTS <= (device.memory.peak_allocated_bytes or 0) <= WEIGHTS + 500 * MIB


def test_why_nothing_is_known(tmp_path: Path) -> None:
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"no_device_memory": "torch tells nothing"})
    run.learn(run.optimizer())
    summary = run.summary(tmp_path)
    assert summary.devices is None
    assert summary.not_observed["devices.memory"] == "torch tells nothing"


OUT_OF_MEMORY = {
    "kind": "cuda",
    "device": 1,
    "place": ["/work/train.py", 42, "main"],
    "requested_bytes": GIB,
    "free_bytes": 5 * MIB,
}


@pytest.mark.parametrize(
    ("note", "known"),
    [
        (OUT_OF_MEMORY, ("cuda:1", "train.py:42", GIB, 5 * MIB, None)),
        ([], None),
        ({}, ("GPU", None, None, None, None)),
        (
            {"device": "x", "place": 7, "free_bytes": -1, "total_bytes": 1 << 80},
            ("GPU", "unknown", None, None, None),
        ),
    ],
)
def test_how_a_device_ran_out(tmp_path: Path, note: Any, known: tuple[Any, ...] | None) -> None:
    run = FakeRun()
    run.text(Topic.OUT_OF_MEMORY, note)
    run.learn(run.optimizer())
    names = ("device", "site", "requested_bytes", "free_bytes", "total_bytes")
    end = run.summary(tmp_path).out_of_memory
    assert (end and tuple(getattr(end, name) for name in names)) == known
