"""The script's process tree over the run: CPU time, memory and its growth, the last sample."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.statistics.time_weighted import (
    NS_PER_S,
    Floats,
    Line,
    Spans,
    Times,
    Window,
    column,
    gauge_statistics,
    spans_between,
    statistics,
)
from trainprof.analysis.summary.device import CopiedPages, MemoryGrowth
from trainprof.analysis.timeline.events import Int64
from trainprof.record.notes import known

if TYPE_CHECKING:
    from trainprof.analysis.summary.loader import Loader

Key = tuple[int, int]  # pid and start time
Samples = list[tuple[int, Line]]  # of one process: time in ns, and its counters

# Only the largest are listed: a run may start thousands of short processes.
MAX_PROCESSES: Final = 64
# "Grown" compares with the first third: fewer samples have none.
MIN_SAMPLES_FOR_GROWTH: Final = 3
# Growth is reported from these on: as a share, and in bytes.
LEAST_GROWTH_SHARE: Final = 0.1
LEAST_GROWTH_BYTES: Final = 100 << 20
_LEAST_SAMPLES: Final = 12
_LEAST_STEPS: Final = 20
# Caches and buffers grow ever more slowly: growth has to reach this share of its average from each
# part of the run to the next, at the end as well.
_PARTS: Final = 5
_EVENLY: Final = 0.5
# Mapped files stay in memory while there is room: reading them is not growth.
_OWN: Final = "rss_without_files_bytes"
_RESIDENT: Final = "rss_bytes"


@dataclass(frozen=True, slots=True)
class Tick:
    """The process tree at one sample, with zombies and their CPU time."""

    t_ns: int
    processes: dict[Key, Line]

    @property
    def rss_bytes(self) -> float | None:
        """Memory of living processes; None without any."""
        sizes = [_rss_bytes(process) for process in self.processes.values()]
        return sum(size for size in sizes if size is not None) if any(sizes) else None

    @property
    def pss_bytes(self) -> float | None:
        """Memory with shared pages counted once; None unless known of all living processes."""
        living = [p for p in self.processes.values() if _rss_bytes(p) is not None]
        sizes = [known(process.get("pss_bytes")) for process in living]
        measured = [size for size in sizes if size is not None]
        return sum(measured) if measured and len(measured) == len(living) else None


def ticks_of(process_lines: Sequence[Line]) -> list[Tick]:
    """Returns the samples in which there is a process with pid and start time."""
    ticks = []
    for line in process_lines:
        processes = {}
        for process in entries(line, "processes"):
            pid, started_ns = known(process.get("pid")), known(process.get("started_ns"))
            if pid is not None and started_ns is not None:
                processes[int(pid), int(started_ns)] = process
        if processes:
            ticks.append(Tick(line["t_ns"], processes))
    return ticks


def entries(line: Line, name: str) -> Iterator[Line]:
    """Yields the objects in a line's list `name`, if it is one."""
    values = line.get(name)
    if isinstance(values, list):
        yield from (entry for entry in values if isinstance(entry, dict))


def tree_percent(ticks: list[Tick], window: Window) -> Spans:
    """Returns the CPU use of the whole tree, 100 = one core; processes that ended included."""
    return _percent(tree_used_ns(ticks), tick_times(ticks), window)


def tree_used_ns(ticks: list[Tick]) -> Floats:
    """Returns its CPU time from each sample to the next, ns."""
    return column(_tree_cpu_ns(before, after) for before, after in pairwise(ticks))


def tick_times(ticks: list[Tick]) -> Times:
    return np.array([tick.t_ns for tick in ticks], dtype=np.int64)


def _tree_cpu_ns(before: Tick, after: Tick) -> float:
    """Returns the CPU time that the tree took from one sample to the next, in ns.

    The time of a process that ended in between is in its parent's reaped time, with its earlier
    time; that of a process that also started in between is there only.
    """
    own = reaped = 0.0
    for key, process in after.processes.items():
        earlier = before.processes.get(key, {})
        own += max(0.0, _own_cpu_ns(process) - _own_cpu_ns(earlier))
        reaped += max(0.0, _reaped_cpu_ns(process) - _reaped_cpu_ns(earlier))
    counted = sum(
        _own_cpu_ns(process) + _reaped_cpu_ns(process)
        for key, process in before.processes.items()
        if key not in after.processes
    )
    return own + max(0.0, reaped - counted)


def _own_cpu_ns(process: Line) -> float:
    return (known(process.get("user_ns")) or 0.0) + (known(process.get("system_ns")) or 0.0)


def _reaped_cpu_ns(process: Line) -> float:
    return known(process.get("reaped_ns")) or 0.0


def _rss_bytes(process: Line) -> float | None:
    """Returns a living process's memory; an ending process has freed it already."""
    return None if process.get("state") in ("Z", "X") else known(process.get("rss_bytes")) or None


def processes_of(ticks: list[Tick], window: Window, main_pid: int | None) -> list[dict[str, Any]]:
    """Returns the processes by CPU time, at most MAX_PROCESSES of them and the main one always."""
    timed: dict[Key, Samples] = {}
    # A process's first gauges hold from the sample before, or the run's start.
    since_ns: dict[Key, int] = {}
    before_ns = window.start_ns
    for tick in ticks:
        for key, process in tick.processes.items():
            since_ns.setdefault(key, before_ns)
            timed.setdefault(key, []).append((tick.t_ns, process))
        before_ns = tick.t_ns
    main = next((key for key in timed if key[0] == main_pid), None)
    order = sorted(timed, key=lambda key: _own_cpu_ns(timed[key][-1][1]), reverse=True)
    shown = [key for i, key in enumerate(order) if i < MAX_PROCESSES or key == main]
    return [_process(timed[key], since_ns[key], window, is_main=key == main) for key in shown]


def _process(timed: Samples, since_ns: int, window: Window, *, is_main: bool) -> dict[str, Any]:
    samples = [process for _, process in timed]
    times_ns = np.array([t_ns for t_ns, _ in timed], dtype=np.int64)
    cpu_percent = _percent(np.diff(column(map(_own_cpu_ns, samples))), times_ns, window)
    rss = column(map(_rss_bytes, samples))
    threads = [known(process.get("threads")) for process in samples]
    last = samples[-1]
    return {
        "pid": last["pid"],
        "name": last.get("name"),
        "role": "main" if is_main else "child",
        "cpu_percent": statistics(cpu_percent),
        "rss_bytes": gauge_statistics(rss, times_ns, window, since_ns=since_ns),
        "threads": max((int(count) for count in threads if count is not None), default=None),
        "first_s": (int(times_ns[0]) - window.start_ns) / NS_PER_S,
        "last_s": (int(times_ns[-1]) - window.start_ns) / NS_PER_S,
    }


def _percent(used_ns: Floats, times_ns: Times, window: Window) -> Spans:
    """Returns CPU time taken from one sample to the next as a share of that time, in percent."""
    passed_ns = np.diff(times_ns)
    is_good = (passed_ns > 0) & (used_ns >= 0)
    percent = np.full(len(used_ns), np.nan)
    percent[is_good] = 100 * used_ns[is_good] / passed_ns[is_good]
    return spans_between(percent, times_ns, window)


def samples_by_pid(ticks: list[Tick], pids: Collection[int]) -> dict[int, Samples]:
    samples: dict[int, Samples] = {pid: [] for pid in pids}
    for tick in ticks:
        for (pid, _), process in tick.processes.items():
            if pid in samples:
                samples[pid].append((tick.t_ns, process))
    return samples


def resources_of(samples: Samples, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Returns highest memory and threads of one process in a stretch of time, and rates of its
    counters.

    {} without any sample there.
    """
    time = itemgetter(0)
    begin = bisect_left(samples, start_ns, key=time)
    samples = samples[begin : bisect_right(samples, end_ns, key=time)]
    if not samples:
        return {}
    resources: dict[str, Any] = {}
    for key in ("rss_bytes", "pss_bytes", "threads"):
        values = [value for _, p in samples if (value := known(p.get(key))) is not None]
        resources[key] = int(max(values)) if values else None
    passed_s = (samples[-1][0] - samples[0][0]) / NS_PER_S
    if passed_s > 0:
        for key in ("voluntary_switches", "involuntary_switches", "read_bytes", "read_calls"):
            first, last = (known(samples[at][1].get(key)) for at in (0, -1))
            if first is not None and last is not None:
                resources[f"{key}_per_s"] = max(0.0, last - first) / passed_s
        used_ns = _own_cpu_ns(samples[-1][1]) - _own_cpu_ns(samples[0][1])
        resources["cpu_percent"] = max(0.0, used_ns) / NS_PER_S / passed_s * 100
    return resources


def last_sample(
    host_lines: Sequence[Line], ticks: list[Tick], window: Window, main_pid: int | None
) -> dict[str, Any] | None:
    """Returns the tree's memory at the last sample with a living main process."""
    alive = [
        (tick.t_ns, *sizes)
        for tick in ticks
        if tick.t_ns <= window.end_ns and (sizes := _sizes(tick, main_pid)) is not None
    ]
    if not alive:
        return None
    t_ns, main_bytes, children_bytes = alive[-1]
    first_third = alive[: len(alive) // MIN_SAMPLES_FOR_GROWTH]
    return {
        "at_s": (t_ns - window.start_ns) / NS_PER_S,
        "main_rss_bytes": main_bytes,
        "children_rss_bytes": children_bytes,
        "host_available_bytes": _host_available(host_lines, t_ns),
        "grown_bytes": {
            "main": _growth(main_bytes, [main for _, main, _ in first_third]),
            "children": _growth(children_bytes, [children for _, _, children in first_third]),
        },
    }


def _sizes(tick: Tick, main_pid: int | None) -> tuple[float, float] | None:
    """Returns (main, children) memory in bytes, or None without a living main process."""
    main = None
    children = 0.0
    for (pid, _), process in tick.processes.items():
        size = _rss_bytes(process)
        if pid == main_pid:
            main = size
        else:
            children += size or 0.0
    return None if main is None else (main, children)


def _growth(last: float, early: list[float]) -> float | None:
    return last - sum(early) / len(early) if early else None


def _host_available(host_lines: Sequence[Line], t_ns: int) -> float | None:
    """Returns the host's available bytes at the sample nearest to `t_ns`."""
    sizes = [
        (abs(line["t_ns"] - t_ns), size)
        for line in host_lines
        if (size := known(line.get("memory_available_bytes"))) is not None
    ]
    return min(sizes)[1] if sizes else None


def memory_growth(
    ticks: list[Tick],
    pid: int | None,
    step_ends: Int64,
    warmup: int,
    room_bytes: float | None,
    pass_starts: Int64,
) -> MemoryGrowth | None:
    """Returns the growth of the training process's memory per step.

    None without steady growth: loading something once or filling a cache ends.

    Args:
        step_ends: Of all steps, ns, in order.
        room_bytes: Of memory, left at the end.
        pass_starts: Of iterations over the training data, ns.
    """
    ends = step_ends[warmup:]
    if pid is None or len(ends) < _LEAST_STEPS:
        return None
    samples = samples_by_pid(ticks, [pid])[pid]
    name = _OWN if any(_OWN in process for _, process in samples) else _RESIDENT
    t_ns = np.array([time for time, _ in samples], dtype=np.int64)
    size = column(known(process.get(name)) for _, process in samples)
    inside = (t_ns >= ends[0]) & (t_ns <= ends[-1]) & ~np.isnan(size)
    t_ns, size = t_ns[inside], size[inside]
    if len(size) < _LEAST_SAMPLES:
        return None
    step = warmup + np.searchsorted(ends, t_ns, side="right")
    # Medians, as single samples may include batches and gradients.
    at, middle = (
        np.array([np.median(part) for part in np.array_split(values, _PARTS)])
        for values in (step, size)
    )
    grown, counted = float(middle[-1] - middle[0]), float(at[-1] - at[0])
    least = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_SHARE * float(middle[0]))
    if grown < least or (np.diff(at) <= 0).any():
        return None
    slope = grown / counted
    if (np.diff(middle) < _EVENLY * slope * np.diff(at)).any():
        return None
    return MemoryGrowth(
        bytes_per_step=slope,
        steps=round(counted),
        first_bytes=float(middle[0]),
        last_bytes=float(middle[-1]),
        room_bytes=room_bytes,
        passes=1 + int(((pass_starts > t_ns[0]) & (pass_starts <= t_ns[-1])).sum()),
    )


def copied_by_workers(
    ticks: list[Tick], main_pid: int | None, loaders: Iterable[Loader]
) -> CopiedPages | None:
    """Returns the memory that forked workers copied from their parent, of the loader with most.

    Their private memory then grows without their total memory. Memory that other processes free
    becomes private without a copy.
    """
    grown = [_copied(ticks, main_pid, loader) for loader in loaders if loader.fetch is not None]
    known = [copied for copied in grown if copied is not None]
    return max(known, key=lambda copied: copied.last_bytes, default=None)


def _copied(ticks: list[Tick], main_pid: int | None, loader: Loader) -> CopiedPages | None:
    rows = loader.fetch.per_worker if loader.fetch is not None else []
    pids = {int(row["pid"]) for row in rows if row.get("worker") is not None} - {main_pid}
    samples = samples_by_pid(ticks, {*pids, main_pid or 0})
    main = samples.pop(main_pid or 0)
    grown = []
    for own in samples.values():
        measured = [(t_ns, p) for t_ns, p in own if known(p.get("private_bytes")) is not None]
        if len(measured) < 2:
            continue
        (start_ns, before), (end_ns, after) = measured[0], measured[-1]
        first, last = (float(p["private_bytes"]) for p in (before, after))
        copied = last - first - max(_grown(measured, start_ns, end_ns), 0.0)
        given_back = -_grown(main, start_ns, end_ns)
        if copied >= max(LEAST_GROWTH_BYTES, first) and given_back < copied / 2:
            grown.append((first, last, (end_ns - start_ns) / NS_PER_S))
    if not grown:
        return None
    first, last, seconds = (float(np.median(column)) for column in zip(*grown, strict=True))
    return CopiedPages(
        site=loader.site,
        workers=min(len(grown), loader.num_workers or 1),
        first_bytes=first,
        last_bytes=last,
        seconds=seconds,
        python_objects=loader.python_objects,
    )


def _grown(samples: Samples, start_ns: int, end_ns: int) -> float:
    """Returns the growth of a process's memory with shared pages, bytes."""
    sizes = [known(p.get(_OWN)) for t_ns, p in samples if start_ns <= t_ns <= end_ns]
    own = [size for size in sizes if size is not None]
    return own[-1] - own[0] if own else 0.0


def room_of(memory: dict[str, object], last_sample: dict[str, object] | None) -> float | None:
    """Returns the free memory at the end, of the host or within the container's limit, or None."""
    free = number_at(last_sample, "host_available_bytes")
    limit, used = number_at(memory, "limit_bytes"), number_at(memory, "tree_pss_bytes", "max")
    if limit is None:
        return free
    # Resident memory counts shared pages once per process.
    if free is None or used is None or used >= limit:
        return None
    return min(free, limit - used)
