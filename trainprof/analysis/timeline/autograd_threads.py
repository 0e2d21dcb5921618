"""What autograd's own threads record belongs to the thread whose backward they work for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events
from trainprof.analysis.timeline.iterations import LEARNING
from trainprof.record.schema import Kind


def on_calling_threads(events: Events) -> Events:
    """Returns the events with those of autograd's threads as the caller's, inside whose they lie.

    On a device, what a backward calls (an optimizer's step in a hook, a checkpoint's forward) runs
    on a thread of autograd's, while the one that called it waits: together they nest.

    Args:
        events: Of one process, all threads, in order of start.
    """
    computing = np.unique(events.thread[events.is_kind(*LEARNING, Kind.FORWARD)]).tolist()
    callers = np.unique(events.thread[events.is_kind(Kind.BACKWARD)]).tolist()
    if len(computing) < 2:
        return events
    host: dict[int, int] = {}
    for one in computing:
        others = (x for x in callers if x != one and host.get(x) != one)
        found = next((x for x in others if _lie_in_backward(events, one, x).all()), None)
        if found is not None:
            host[one] = found
    thread = events.thread.copy() if host else events.thread
    for one, caller in host.items():
        while caller in host:
            caller = host[caller]
        thread[events.thread == one] = caller
    return replace(events, thread=thread)


def _lie_in_backward(events: Events, thread: int, caller: int) -> Bool:
    """Returns which of a thread's events lie wholly inside a backward of another's."""
    passes = events.is_kind(Kind.BACKWARD) & (events.thread == caller)
    own = events.thread == thread
    starts, ends = events.start[passes], np.maximum.accumulate(events.end[passes])
    before = np.searchsorted(starts, events.start[own], side="right")
    inside: Bool = (before > 0) & (events.end[own] <= ends[np.maximum(before - 1, 0)])
    return inside
