"""Memory that grows with every step: what ends a run that is long enough."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.events import Int64
from trainprof.analysis.facts import number_at
from trainprof.analysis.memory_figures import MemoryGrowth
from trainprof.analysis.system_processes import Tick, samples_by_pid
from trainprof.analysis.time_weighted import column, number

# From so much on it is worth a sentence: of what there was, and at all.
LEAST_GROWTH_SHARE: Final = 0.1
LEAST_GROWTH_BYTES: Final = 100 << 20
_LEAST_SAMPLES: Final = 12
_LEAST_STEPS: Final = 20
# What fills up (a cache, buffers) grows ever more slowly: from each part of the run to the next it
# has to grow by so much of what it grows on average, at the end too.
_PARTS: Final = 5
_EVENLY: Final = 0.5


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
    t_ns = np.array([time for time, _ in samples], dtype=np.int64)
    rss = column(number(process.get("rss_bytes")) for _, process in samples)
    inside = (t_ns >= ends[0]) & (t_ns <= ends[-1]) & ~np.isnan(rss)
    t_ns, rss = t_ns[inside], rss[inside]
    if len(rss) < _LEAST_SAMPLES:
        return None
    step = warmup + np.searchsorted(ends, t_ns, side="right")
    # Medians, for single samples meet batches and gradients, or do not.
    groups = np.array_split(np.arange(len(rss)), _PARTS)
    at = np.array([np.median(step[group]) for group in groups])
    size = np.array([np.median(rss[group]) for group in groups])
    grown, steps = float(size[-1] - size[0]), float(at[-1] - at[0])
    least = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_SHARE * float(size[0]))
    if grown < least or (np.diff(at) <= 0).any():
        return None
    slope = grown / steps
    if (np.diff(size) < _EVENLY * slope * np.diff(at)).any():
        return None
    return MemoryGrowth(
        bytes_per_step=slope,
        steps=round(steps),
        first_bytes=float(size[0]),
        last_bytes=float(size[-1]),
        room_bytes=room_bytes,
        passes=1 + int(((pass_starts > t_ns[0]) & (pass_starts <= t_ns[-1])).sum()),
    )


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
