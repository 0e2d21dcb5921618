"""The machine over a run: the sampler's lines in bins of time, and histograms of utilisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.machine.gpus import asked_values, gpus_of, samples_by_gpu
from trainprof.analysis.machine.processes import tick_times, ticks_of, tree_used_ns
from trainprof.analysis.machine.system import cores_busy, cpu_busy_ns, pids_of
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.statistics.time_weighted import (
    Floats,
    Line,
    Times,
    Window,
    column,
    field_column,
    lines_around,
    times_of,
)
from trainprof.analysis.summary.charts import UNKNOWN_PERCENT, Histogram, Machine, Series
from trainprof.record.notes import known

if TYPE_CHECKING:
    from trainprof.analysis.machine.processes import Tick
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.summary.charts import Bytes
    from trainprof.analysis.summary.charts import Floats as Float32s

_MOST_BINS: Final = 2_000
# More rows than fit on a screen; those that the process may use come first.
_MOST_CORES: Final = 256
_PERCENT_EDGES: Final = np.linspace(0.0, 100.0, 21)


@dataclass(frozen=True, slots=True)
class Observed:
    """A figure over stretches of time, shape (n,), ascending and disjoint, inside a window.

    Attributes:
        start_ns, end_ns: Of each stretch, longer than 0.
    """

    start_ns: Times
    end_ns: Times
    values: Floats

    @classmethod
    def between(cls, times_ns: Times, values: Floats, window: Window) -> Observed:
        """Of n times and n - 1 values in between; NaN is not observed."""
        start, end = (np.clip(x, *_bounds(window)) for x in (times_ns[:-1], times_ns[1:]))
        kept = (end > start) & ~np.isnan(values)
        return cls(start[kept], end[kept], values[kept])

    @classmethod
    def gauge(cls, times_ns: Times, values: Floats, window: Window) -> Observed:
        """Of n times: each value holds since the time before, the first since the window began."""
        return cls.between(np.append(window.start_ns, times_ns), values, window)

    @classmethod
    def rate(cls, times_ns: Times, values: Floats, window: Window) -> Observed:
        """Of a counter, per s; where it decreased nothing was observed."""
        grown, passed = np.diff(values), np.diff(times_ns)
        passed_s = np.where(passed > 0, passed, np.nan) / 1e9
        return cls.between(times_ns, np.where(grown >= 0, grown, np.nan) / passed_s, window)

    def in_bins(self, edges_ns: Times) -> tuple[Floats, Floats]:
        """Returns mean and largest value of each bin, NaN where nothing was observed."""
        bins = len(edges_ns) - 1
        mean = np.full(bins, np.nan)
        if len(self.values) == 0:
            return mean, mean
        origin = edges_ns[0]
        length = self.end_ns - self.start_ns
        at = np.stack((self.start_ns, self.end_ns), axis=1).ravel() - origin
        edges = edges_ns - origin

        def until(each: Floats) -> Floats:
            total = np.cumsum(each)
            steps = np.stack((total - each, total), axis=1).ravel()
            return np.diff(np.interp(edges, at, steps))

        observed = until(length.astype(np.float64))
        # Far less than a ns is rounding.
        has_any = observed > 0.5
        mean[has_any] = until(self.values * length)[has_any] / observed[has_any]
        first = np.searchsorted(self.end_ns, edges_ns[:-1], side="right")
        behind = np.searchsorted(self.start_ns, edges_ns[1:], side="left")
        pairs = np.stack((first, np.maximum(behind, first)), axis=1).ravel()
        largest = np.maximum.reduceat(np.append(self.values, -np.inf), pairs)[::2]
        return mean, np.where(has_any, largest, np.nan)


def _bounds(window: Window) -> tuple[int, int]:
    return window.start_ns, window.end_ns


def machine_of(run: Analysed) -> tuple[Machine | None, list[Histogram]]:
    """Returns the machine over the timeline's window, and histograms of its utilisation."""
    recording, window = run.recording, Window(run.timeline.window.start, run.timeline.window.end)
    lines = [
        list(lines_around(x, window))
        for x in (recording.host_lines, recording.process_lines, recording.gpu_lines)
    ]
    sampled = max((times_of(x) for x in lines), key=len)
    edges = np.unique(np.clip(np.append(window.start_ns, sampled), *_bounds(window)))
    if len(sampled) == 0 or len(edges) < 2:
        return None, []
    # Whole samples, so that each bin of the host has its own.
    stride = -(-(len(edges) - 1) // _MOST_BINS)
    edges = np.append(edges[:-1:stride], edges[-1])
    binned = _Binned(edges, is_sampled_once=stride == 1)
    gpus = []
    for name, panel, unit, observed in figures_of(run, window):
        binned.add(name, panel, unit, observed)
        if panel == "gpu_utilization":
            gpus.append((name, observed))
    cores = [(f"core {n}", x) for n, x in _of_cores(run, lines[0], window)]
    histograms = [_histogram("cores", [x for _, x in cores])] if cores else []
    histograms += [_histogram(name, [observed]) for name, observed in gpus]
    machine = Machine(
        time_s=((edges[:-1] + edges[1:]) / 2 - run.origin_ns) / 1e9,
        series=binned.series,
        cores={name: _percent(x.in_bins(edges)[0]) for name, x in [*cores, *gpus]},
    )
    return machine, [x for x in histograms if x.counts.any()]


_GPU_FIGURES: Final = (
    ("utilization_gpu_percent", "gpu_utilization", "%"),
    ("memory_used_bytes", "gpu_memory", "bytes"),
    ("power_w", "gpu_power", "W"),
)
_RATES: Final = (
    ("read", "disk", "disk_read_bytes"),
    ("written", "disk", "disk_write_bytes"),
    ("received", "network", "network_received_bytes"),
    ("sent", "network", "network_sent_bytes"),
)
_Figures = Iterator[tuple[str, str, str, Observed]]


class _Binned:
    """Collects series in the same bins, those that were observed."""

    def __init__(self, edges_ns: Times, *, is_sampled_once: bool) -> None:
        self.series: list[Series] = []
        self._edges_ns, self._is_sampled_once = edges_ns, is_sampled_once

    def add(self, name: str, panel: str, unit: str, observed: Observed) -> None:
        mean, peak = (x.astype(np.float32) for x in observed.in_bins(self._edges_ns))
        if not np.isnan(mean).all():
            largest = None if self._is_sampled_once else peak
            self.series.append(Series(name=name, panel=panel, unit=unit, mean=mean, peak=largest))


def figures_of(run: Analysed, window: Window) -> _Figures:
    """Yields name, panel and unit as of a Series, of every figure, with all of its samples."""
    recording = run.recording
    host_lines, process_lines, gpu_lines = (
        list(lines_around(x, window))
        for x in (recording.host_lines, recording.process_lines, recording.gpu_lines)
    )
    ticks = ticks_of(process_lines)
    yield from _of_host(host_lines, window)
    yield from _of_tree(ticks, window)
    yield from _of_gpus(run, gpu_lines, ticks, window)


def _of_host(lines: Sequence[Line], window: Window) -> _Figures:
    times_ns = times_of(lines)
    busy = Observed.rate(times_ns, cpu_busy_ns(lines), window)
    yield "host", "cpu", "%", Observed(busy.start_ns, busy.end_ns, busy.values / 1e7)
    available = field_column(lines, "memory_available_bytes")
    yield "host available", "memory", "bytes", Observed.gauge(times_ns, available, window)
    for name, panel, field in _RATES:
        counted = field_column(lines, field)
        yield name, panel, "bytes/s", Observed.rate(times_ns, counted, window)


def _of_tree(ticks: list[Tick], window: Window) -> _Figures:
    times_ns = tick_times(ticks)
    passed_ns = np.where((passed := np.diff(times_ns)) > 0, passed, np.nan)
    percent = 100 * tree_used_ns(ticks) / passed_ns
    yield "process tree", "cpu", "%", Observed.between(times_ns, percent, window)
    rss = column(tick.rss_bytes for tick in ticks)
    yield "process tree (RSS)", "memory", "bytes", Observed.gauge(times_ns, rss, window)
    # Read far less often, as in the summary.
    with_pss = [tick for tick in ticks if tick.pss_bytes is not None]
    if len(with_pss) > 1:
        pss = column(tick.pss_bytes for tick in with_pss)
        observed = Observed.gauge(tick_times(with_pss), pss, window)
        yield "process tree (PSS)", "memory", "bytes", observed


def _of_cores(
    run: Analysed, lines: Sequence[Line], window: Window
) -> Iterator[tuple[int, Observed]]:
    """Yields the cores that the process may use, or all of the host's where that is unknown."""
    times_ns, numbers = times_of(lines), run.host.cores.numbers
    count = max((len(cores_busy(line)) for line in lines), default=0)
    chosen = [n for n in numbers if n < count] or list(range(count))
    for number in chosen[:_MOST_CORES]:
        busy_ns = column(_known_at(cores_busy(line), number) for line in lines)
        busy = Observed.rate(times_ns, busy_ns, window)
        if len(busy.values):
            # Ticks of 10 ms may add up to a little more than the time.
            yield number, Observed(busy.start_ns, busy.end_ns, np.minimum(busy.values / 1e7, 100))


def _known_at(values: list[Any], place: int) -> float | None:
    return known(values[place]) if place < len(values) else None


def _gpus(
    run: Analysed, lines: Sequence[Line], ticks: list[Tick], window: Window
) -> Iterator[tuple[str, list[Line]]]:
    """Yields the GPUs that the script uses, or where that is unknown those that it may use."""
    if not lines:
        return
    samples = samples_by_gpu(lines)
    pids = pids_of(ticks, integer(run.recording.manifest.get("script_pid")))
    gpus = list(zip(gpus_of(lines, window, pids), samples.items(), strict=True))
    used = [pair for pair in gpus if pair[0].is_used]
    shown = used or [pair for pair in gpus if pair[0].is_visible is not False]
    numbers = [index for _, ((index, _), _) in shown]
    for _, ((index, uuid), own) in shown:
        is_only = numbers.count(index) == 1
        yield f"GPU {index}" if is_only else f"GPU {index} ({uuid})", own


def _of_gpus(run: Analysed, lines: Sequence[Line], ticks: list[Tick], window: Window) -> _Figures:
    for name, samples in _gpus(run, lines, ticks, window):
        for field, panel, unit in _GPU_FIGURES:
            values, times_ns = asked_values(samples, field)
            yield name, panel, unit, Observed.gauge(times_ns, values, window)


def _percent(values: Floats) -> Bytes:
    is_known = ~np.isnan(values)
    percent = np.full(len(values), UNKNOWN_PERCENT, dtype=np.uint8)
    percent[is_known] = np.clip(np.rint(values[is_known]), 0, 100)
    return percent


def _histogram(name: str, observed: Sequence[Observed]) -> Histogram:
    """Returns seconds at each utilisation, the mean of several cores."""
    seconds: Float32s = np.zeros(len(_PERCENT_EDGES) - 1, dtype=np.float32)
    for x in observed:
        length_s = (x.end_ns - x.start_ns) / 1e9
        counts, _ = np.histogram(np.clip(x.values, 0, 100), _PERCENT_EDGES, weights=length_s)
        seconds += (counts / len(observed)).astype(np.float32)
    edges = _PERCENT_EDGES.astype(np.float32)
    return Histogram(name=name, unit="%", edges=edges, counts=seconds)
