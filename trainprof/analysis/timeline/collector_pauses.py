"""How long the garbage collector stopped a thread inside other events: no time of theirs."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Events, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.record.schema import Kind

EVER: Final = (0, int(np.iinfo(np.int64).max))


def collections_on(thread: int, events: Events) -> Coverage:
    """Returns when the garbage collector stopped a thread.

    Args:
        thread: Its number.
        events: Of any threads.
    """
    found = events.where(events.is_kind(Kind.GC) & (events.thread == thread))
    return Coverage.of(np.stack((found.start, found.end), axis=1), EVER)


def paused_ns(calls: Events, events: Events) -> Int64:
    """Returns for how long each call was stopped by a collection on its thread, ns.

    Args:
        calls: Some of the events.
        events: Of all threads.
    """
    found = np.zeros(len(calls), dtype=np.int64)
    for thread in np.unique(events.thread[events.is_kind(Kind.GC)]).tolist():
        mine = calls.thread == thread
        pauses = collections_on(thread, events)
        found[mine] = pauses.inside_ns(calls.start[mine], calls.end[mine])
    return found
