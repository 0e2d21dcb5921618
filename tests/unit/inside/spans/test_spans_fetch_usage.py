"""What is measured of a fetch: against the kernel's own clocks, and against planted counters."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.usage import ask
from torch.overrides import TorchFunctionMode

from trainprof.inside.spans import fetch_usage
from trainprof.inside.spans.fetch_usage import (
    FIRST_LONG,
    FIRST_MEASURED,
    MANY_AFTER,
    ONE_OF,
    ONE_OF_BATCHES,
    ONE_OF_MANY,
    SHORT_NS,
    BatchScale,
    UsageMeter,
)
from trainprof.record.schema import FAULTS_SHIFT, NOT_REPORTED, Kind

START = 1_000_000
WALL_NS = 10_000_000
SECOND_NS = 1_000_000_000


class Kernel:
    """Counters that the test moves on."""

    def __init__(self, directory: Path) -> None:
        self.thread_ns = self.process_ns = 5 * SECOND_NS
        self.delay_ns = self.lag_ns = self.throttled_us = self.blocks = self.faults = 0
        self.schedstat, self.cpu_stat = directory / "schedstat", directory / "cpu.stat"
        self.write()

    def write(self) -> None:
        self.schedstat.write_text(f"{self.thread_ns - self.lag_ns} {self.delay_ns} 7\n")
        self.cpu_stat.write_text(f"nr_periods 9\nthrottled_usec {self.throttled_us}\n")

    def rusage(self, who: int) -> SimpleNamespace:
        return SimpleNamespace(
            ru_utime=self.process_ns / 2e9,
            ru_stime=self.process_ns / 2e9,
            ru_inblock=self.blocks,
            ru_majflt=self.faults,
        )


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(fetch_usage, "_RUN_DELAY_FILE", str(made.schedstat))
    monkeypatch.setattr(fetch_usage, "thread_time_ns", lambda: made.thread_ns)
    monkeypatch.setattr(fetch_usage, "getrusage", made.rusage)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    return made


class Log(list[tuple[Any, ...]]):
    """What was emitted: (kind, ns, site, value, flags)."""

    def emit(
        self, kind: int, start: int, end: int, site: int = 0, value: int = 0, flags: int = 0
    ) -> None:
        assert start == START
        self.append((Kind(kind), end - start, site, value, flags))


@pytest.fixture
def log() -> Log:
    return Log()


def fetch(meter: UsageMeter, during: Callable[[], None], wall_ns: int = WALL_NS) -> None:
    begun = ask(meter)
    during()
    meter.took(wall_ns)
    if begun is not None:
        meter.end(begun, START, wall_ns)


@pytest.mark.parametrize(
    ("thread_ns", "process_ns", "delay_ns", "record"),
    [
        (3_000_000, 8_000_000, 2_000_000, (3_000_000, 2000, 8_000_000)),
        # The kernel's clocks are not read in the same moment: a fetch waits for a core no longer
        # than it is without one, and what the thread used the process used too.
        (WALL_NS - 300_000, WALL_NS, 350_000, (WALL_NS - 300_000, 300, WALL_NS)),
        (3_000, 0, 0, (3000, 0, 3000)),
    ],
)
def test_cpu_and_run_delay_are_the_fetchs_own(
    kernel: Kernel,
    log: Log,
    thread_ns: int,
    process_ns: int,
    delay_ns: int,
    record: tuple[int, int, int],
) -> None:
    meter = UsageMeter(log.emit, None)
    kernel.delay_ns = 44_000_000  # before it

    def work() -> None:
        kernel.thread_ns += thread_ns
        kernel.process_ns += process_ns
        kernel.delay_ns += delay_ns
        kernel.write()

    kernel.write()
    fetch(meter, work)
    assert log == [(Kind.FETCH_CPU, *record, 1)]


def test_reads_between_fetches_are_nobodys(kernel: Kernel, log: Log) -> None:
    meter = UsageMeter(log.emit, None)

    def read() -> None:
        kernel.blocks += 8
        kernel.faults += 2

    for _ in range(2):
        read()
        fetch(meter, read)
    fetch(meter, lambda: None)  # one that reads nothing
    reads = [value for kind, _, _, value, _ in log if kind is Kind.FETCH_IO]
    assert reads == [8 * 512 | 2 << FAULTS_SHIFT] * 2


@pytest.mark.parametrize(
    "text", ["nr_throttled 3\nthrottled_usec {}\n", "throttled_time {}000\nwait_sum 3\n"]
)
def test_a_stop_by_the_quota(kernel: Kernel, log: Log, text: str) -> None:
    meter = UsageMeter(log.emit, str(kernel.cpu_stat))

    def stopped(us: int, delay_us: int) -> None:
        kernel.throttled_us += us
        kernel.delay_ns += delay_us * 1000
        kernel.write()
        kernel.cpu_stat.write_text(text.format(kernel.throttled_us))

    stopped(900, 900)  # before the fetch
    fetch(meter, lambda: stopped(700, 800))
    fetch(meter, lambda: stopped(5000, 0))  # another process was
    assert [site for kind, _, site, _, _ in log if kind is Kind.FETCH_IO] == [700]


@pytest.mark.parametrize("is_theirs", [False, True])
def test_a_script_closes_all_files(
    kernel: Kernel, log: Log, tmp_path: Path, is_theirs: bool
) -> None:
    """A file that took our number says nothing and is left alone; else ours is opened again."""
    meter = UsageMeter(log.emit, None)
    fetch(meter, lambda: None)
    ours = next(iter(meter._files.values()))._descriptor
    assert ours is not None
    log.clear()
    (tmp_path / "theirs").write_text("1 2 3\n4 5 6\n")
    with (tmp_path / "theirs").open("rb") as file:
        if is_theirs:
            os.dup2(file.fileno(), ours)
        else:
            os.close(ours)
        fetch(meter, lambda: None)
        if is_theirs:
            assert os.read(ours, 5) == b"1 2 3"
            os.close(ours)
    assert [site for _, _, site, _, _ in log] == [NOT_REPORTED if is_theirs else 0]


def measured_at(meter: UsageMeter, count: int) -> np.ndarray[Any, Any]:
    meter.took(SHORT_NS - 1)
    return np.array([ask(meter) is not None for _ in range(count)])


@pytest.mark.parametrize("period", [1, 2, 5, 7, 16, 25, 64, 100])
def test_short_fetches_are_sampled_evenly_in_any_period(
    kernel: Kernel, log: Log, period: int
) -> None:
    rounds = 4096
    meter = UsageMeter(log.emit, None)
    at_first = measured_at(meter, MANY_AFTER)
    assert at_first.mean() == pytest.approx(1 / ONE_OF, rel=0.1)
    share = measured_at(meter, rounds * period).reshape(rounds, period)
    assert share.mean(axis=0) == pytest.approx(1 / ONE_OF_MANY, rel=0.25)


def test_of_long_fetches_the_first_are_measured_all(kernel: Kernel, log: Log) -> None:
    meter = UsageMeter(log.emit, None)
    for _ in range(FIRST_LONG):
        fetch(meter, lambda: None)
    assert [flags for *_, flags in log] == [1] * FIRST_LONG
    log.clear()
    for _ in range(400):
        fetch(meter, lambda: None)
    assert {flags for *_, flags in log} == {ONE_OF}
    assert len(log) == pytest.approx(400 / ONE_OF, abs=2)


@pytest.fixture
def scale() -> BatchScale:
    return BatchScale(torch)


class Special(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(4, 8), (128, 1)),
        ([torch.zeros(2), (torch.zeros(3, dtype=torch.uint8), "cat")], (11, 2)),
        ({"x": torch.zeros(2), "y": [np.zeros(3), 7]}, (32, 2)),
        ([torch.zeros(1) for _ in range(300)], (1200, 300)),
        (torch.zeros(2).as_subclass(Special), None),
        (["cat", 7], None),
        ([[0] * 5000, torch.zeros(2)], None),
        (None, None),
    ],
)
def test_how_large_a_batch_is(scale: BatchScale, batch: Any, size: tuple[int, int] | None) -> None:
    assert scale.of(batch) == size


def test_a_mode_of_the_scripts_does_not_see_us_ask(scale: BatchScale) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, *_: Any) -> Any:
            raise AssertionError("asked")

    batch = torch.zeros(2)
    with Mode():
        assert scale.of(batch) is None


def test_after_the_first_batches_each_nth_is_read() -> None:
    scale = BatchScale(torch)
    sizes = [scale.of(torch.zeros(1 + number % 2)) for number in range(FIRST_MEASURED + 400)]
    first, later = sizes[:FIRST_MEASURED], [size for size in sizes[FIRST_MEASURED:] if size]
    assert first == [(4, 1), (8, 1)] * (FIRST_MEASURED // 2)
    assert len(later) == pytest.approx(400 / ONE_OF_BATCHES, abs=3)
    # However sizes alternate, both are seen as often.
    assert later.count((4, 1)) == pytest.approx(len(later) / 2, abs=3)
