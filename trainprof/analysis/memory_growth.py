"""Memory that grows with every step, or batch: what ends a run that is long enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.events import Int64
from trainprof.analysis.facts import number_at
from trainprof.analysis.fetches import FetchTable
from trainprof.analysis.memory_figures import MemoryGrowth, WorkersGrowth
from trainprof.analysis.system_processes import Samples, Tick, samples_by_pid
from trainprof.analysis.time_weighted import Floats, column, number

# From so much on it is worth a sentence: of what there was, and at all.
LEAST_GROWTH_SHARE: Final = 0.1
LEAST_GROWTH_BYTES: Final = 100 << 20
_LEAST_SAMPLES: Final = 12
_LEAST_STEPS: Final = 20
# What fills up (a cache, buffers) grows ever more slowly: from each part of the run to the next it
# has to grow by so much of what it grows on average, at the end too.
_PARTS: Final = 5
_EVENLY: Final = 0.5
# Of its batches: a worker's first ones bring what every batch needs.
_WARMUP_SHARE: Final = 0.1
# Of what their parts of shared pages grew by: that much of it they keep themselves.
_KEPT_SHARE: Final = 0.5
# Mapped files are in memory as long as the system has room, so that reading them is no growth.
_OWN: Final = "rss_without_files_bytes"
_RESIDENT: Final = "rss_bytes"
# Where a page is shared each process has a part of it.
_PART: Final = "pss_anonymous_bytes"


@dataclass(frozen=True, slots=True)
class _Growth:
    """How a size grew with a count (steps, batches), from first to last."""

    slope: float
    counted: int
    first: float
    last: float


def memory_growth(
    ticks: list[Tick],
    pid: int | None,
    step_ends: Int64,
    warmup: int,
    room_bytes: float | None,
    pass_starts: Int64,
) -> MemoryGrowth | None:
    """Returns by how much each step grows the memory of the process that trains.

    None where it does not, or not evenly: what is loaded once, or fills a cache, comes to an end.

    Args:
        ticks: Samples of the process tree.
        pid: Of the process that trains.
        step_ends: Of all steps, ns, in order.
        warmup: So many of the first steps do not count.
        room_bytes: Of memory, left at the end.
        pass_starts: Over the training data, ns.
    """
    ends = step_ends[warmup:]
    if pid is None or len(ends) < _LEAST_STEPS:
        return None
    samples = samples_by_pid(ticks, [pid])[pid]
    name = _OWN if any(_OWN in process for _, process in samples) else _RESIDENT
    t_ns = np.array([time for time, _ in samples], dtype=np.int64)
    size = column(number(process.get(name)) for _, process in samples)
    inside = (t_ns >= ends[0]) & (t_ns <= ends[-1]) & ~np.isnan(size)
    t_ns, size = t_ns[inside], size[inside]
    grown = _even_growth(size, warmup + np.searchsorted(ends, t_ns, side="right"))
    if grown is None:
        return None
    return MemoryGrowth(
        bytes_per_step=grown.slope,
        steps=grown.counted,
        first_bytes=grown.first,
        last_bytes=grown.last,
        room_bytes=room_bytes,
        passes=1 + int(((pass_starts > t_ns[0]) & (pass_starts <= t_ns[-1])).sum()),
    )


def workers_growth(
    fetches: FetchTable, loader: int, samples: Mapping[int, Samples], *, is_forked: bool
) -> WorkersGrowth | None:
    """Returns by how much each batch grows the memory of a loader's workers; None: not evenly.

    Args:
        fetches: Of all loaders.
        loader: Its id.
        samples: Of the workers, by pid.
        is_forked: They share the memory of the process that trains until one of them writes to it.
    """
    own = fetches.rows((fetches.loader == loader) & (fetches.worker > 0))
    pids = _longest_together(own)
    ends = np.sort((own.start_ns + own.wall_ns)[np.isin(own.pid, pids)])
    ends = ends[int(_WARMUP_SHARE * len(ends)) :]
    if len(ends) < _LEAST_STEPS:
        return None
    sizes = {}
    for name in (_OWN, _PART) if is_forked else (_OWN,):
        t_ns, size = _together([samples.get(pid, []) for pid in pids], name)
        inside = (t_ns >= ends[0]) & (t_ns <= ends[-1])
        sizes[name] = np.searchsorted(ends, t_ns[inside], side="right"), size[inside]
    for name, (made, size) in sizes.items():
        grown = _even_growth(size, made)
        if grown is None:
            continue
        # What they keep themselves is in both, and may be little beside what they were given.
        kept = _rise(sizes[_OWN][1]) if name == _PART else grown.last - grown.first
        return WorkersGrowth(
            workers=len(pids),
            bytes_per_batch=grown.slope,
            batches=grown.counted,
            first_bytes=grown.first,
            last_bytes=grown.last,
            is_copied=kept < _KEPT_SHARE * (grown.last - grown.first),
        )
    return None


def _rise(size: Floats) -> float:
    """Returns by how much the last part of some samples is above the first, by medians."""
    if len(size) < _PARTS:
        return 0.0
    parts = np.array_split(size, _PARTS)
    return float(np.median(parts[-1]) - np.median(parts[0]))


def _longest_together(own: FetchTable) -> list[int]:
    """Returns the workers of the longest pass, those that lived for most of it."""
    lives = {}
    for pid in np.unique(own.pid).tolist():
        mine = own.pid == pid
        lives[pid] = int(own.start_ns[mine].min()), int((own.start_ns + own.wall_ns)[mine].max())
    if not lives:
        return []
    begin, end = max(lives.values(), key=lambda life: life[1] - life[0])
    least = 0.5 * (end - begin)
    return [pid for pid, life in lives.items() if min(life[1], end) - max(life[0], begin) >= least]


def _together(samples: Sequence[Samples], name: str) -> tuple[Int64, Floats]:
    """Returns when all processes told a size, and its sum, shape (n,) each."""
    sums: dict[int, list[float]] = {}
    for of_one in samples:
        for t_ns, process in of_one:
            size = number(process.get(name))
            if size is not None:
                sums.setdefault(t_ns, []).append(size)
    whole = {t_ns: sum(told) for t_ns, told in sums.items() if len(told) == len(samples)}
    return np.array(sorted(whole), dtype=np.int64), np.array([whole[t] for t in sorted(whole)])


def _even_growth(size: Floats, place: Int64) -> _Growth | None:
    """Returns how a size grows evenly with a count, and enough to matter; None where it does not.

    Args:
        size: Samples in order of time, shape (n,).
        place: How much was counted by then, shape (n,).
    """
    if len(size) < _LEAST_SAMPLES:
        return None
    # Medians, for single samples meet batches and gradients, or do not.
    groups = np.array_split(np.arange(len(size)), _PARTS)
    at = np.array([np.median(place[group]) for group in groups])
    middle = np.array([np.median(size[group]) for group in groups])
    grown, counted = float(middle[-1] - middle[0]), float(at[-1] - at[0])
    least = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_SHARE * float(middle[0]))
    if grown < least or (np.diff(at) <= 0).any():
        return None
    slope = grown / counted
    if (np.diff(middle) < _EVENLY * slope * np.diff(at)).any():
        return None
    return _Growth(slope, round(counted), float(middle[0]), float(middle[-1]))


def room_of(memory: dict[str, object], last_sample: dict[str, object] | None) -> float | None:
    """Returns what memory was left at the end, of the host or of the container's limit; or None.

    Args:
        memory, last_sample: As `System` has them.
    """
    free = number_at(last_sample, "host_available_bytes")
    limit, used = number_at(memory, "limit_bytes"), number_at(memory, "tree_pss_bytes", "max")
    if limit is None:
        return free
    # Resident memory counts pages that processes share once for each of them.
    if free is None or used is None or used >= limit:
        return None
    return min(free, limit - used)
