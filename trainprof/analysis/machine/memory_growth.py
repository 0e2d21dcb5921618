"""Memory that grows with every step: what ends a run that is long enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.machine.processes import Tick, samples_by_pid
from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.statistics.time_weighted import Floats, column, number
from trainprof.analysis.summary.memory import MemoryGrowth
from trainprof.analysis.timeline.events import Int64

# From so much on it is worth a sentence: of what there was, and at all.
LEAST_GROWTH_SHARE: Final = 0.1
LEAST_GROWTH_BYTES: Final = 100 << 20
_LEAST_SAMPLES: Final = 12
_LEAST_STEPS: Final = 20
# What fills up (a cache, buffers) grows ever more slowly: from each part of the run to the next it
# has to grow by so much of what it grows on average, at the end too.
_PARTS: Final = 5
_EVENLY: Final = 0.5
# Mapped files are in memory as long as the system has room, so that reading them is no growth.
_OWN: Final = "rss_without_files_bytes"
_RESIDENT: Final = "rss_bytes"


@dataclass(frozen=True, slots=True)
class _Growth:
    """How a size grew with a count of steps, from first to last."""

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
