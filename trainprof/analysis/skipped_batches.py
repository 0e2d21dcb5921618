"""Batches that a loop takes and leaves until it is where it left off: training that is resumed."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.events import Events, Int64
from trainprof.analysis.passes import LEARNING, Passes
from trainprof.record.schema import Kind

# Loops that copy ahead have no more batches than that in hand before they compute with the first.
_IN_HAND: Final = 4
# Of what the loop does between later calls: with batches that are left it does next to nothing.
_IDLE_SHARE: Final = 0.1


def skipped_first(nexts: Events, computing: Int64) -> int:
    """Returns how many of a pass's first batches were left, and nothing computed with them.

    Args:
        nexts: The pass's calls that gave a batch, in order of time.
        computing: Starts of forwards, backwards and updates of the same thread, in order, ns.
    """
    if len(nexts) < 2:
        return 0
    ends, following = nexts.end[:-1], nexts.start[1:]
    is_used = np.searchsorted(computing, ends) < np.searchsorted(computing, following)
    count = int(np.argmax(is_used)) if is_used.any() else 0
    if count <= _IN_HAND:
        return 0
    between = following - ends
    is_idle = between[:count].mean() <= _IDLE_SHARE * between[count:].mean()
    return count if is_idle else 0


def computing_starts(events: Events) -> Int64:
    """Returns when forwards, backwards and updates of a thread began, in order, ns."""
    return events.start[events.is_kind(Kind.FORWARD, *LEARNING)]


def skipped_in_training(p: Passes, events: Events) -> tuple[int, float]:
    """Returns how many batches training passes left at their beginning, and the waits for them, s.

    The wait for a pass's first batch is counted elsewhere.

    Args:
        p: Of the loader.
        events: Of the thread that trains.
    """
    nexts = events.where(events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader))
    computing = computing_starts(events)
    begins = np.searchsorted(nexts.start, np.append(p.start, np.iinfo(np.int64).max))
    count, waited_ns = 0, 0
    for number in np.flatnonzero(p.trained() & (p.batches > _IN_HAND)).tolist():
        mine = nexts.where(np.arange(begins[number], begins[number + 1]))
        skipped = skipped_first(mine, computing)
        count += skipped
        waited_ns += int((mine.end - mine.start)[1:skipped].sum())
    return count, waited_ns / 1e9
