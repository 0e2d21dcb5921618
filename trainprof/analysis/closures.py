"""What a closure that the script gives to an optimizer's step does, told from the update itself.

Lightning computes a whole training step in there, the user's code between the modules included.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainprof.analysis.events import Events, Nesting
from trainprof.record.schema import Kind

_COMPUTING: Final = (Kind.ZERO_GRAD, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


def with_closures(events: Events, nesting: Nesting) -> Events:
    """Returns the events with one more around each call of a closure, as far as it can be told.

    A call begins with its step, with its zero_grad, or with what first computes after the backward
    before (LBFGS calls it again and again), and ends with its backward.

    Args:
        events: One thread's.
        nesting: Of `events`.
    """
    above = np.maximum(nesting.parent, 0)
    in_step = (nesting.parent >= 0) & (events.kind[above] == Kind.OPTIMIZER_STEP)
    inner = np.flatnonzero(in_step & events.is_kind(*_COMPUTING))
    is_backward = events.kind[inner] == Kind.BACKWARD
    if not is_backward.any():
        return events
    step = nesting.parent[inner]
    is_first = np.concatenate([[True], step[1:] != step[:-1]])
    begins = is_first.copy()
    begins[1:] |= is_backward[:-1] & ~is_backward[1:]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(inner)) - 1
    ends_in_backward = is_backward[last]
    first, last = first[ends_in_backward], last[ends_in_backward]
    # What an optimizer does before it lets the closure begin anew (SAM) is its own.
    from_step = is_first[first] & (events.kind[inner[first]] != Kind.ZERO_GRAD)
    start = np.where(from_step, events.start[step[first]], events.start[inner[first]])
    place = np.where(from_step, step[first] + 1, inner[first])
    value: Any = np.insert(events.value, place, events.value.dtype.type(0))
    return Events(
        kind=np.insert(events.kind, place, np.uint8(Kind.CLOSURE)),
        flags=np.insert(events.flags, place, np.uint8(0)),
        thread=np.insert(events.thread, place, events.thread[inner[first]]),
        site=np.insert(events.site, place, events.site[step[first]]),
        start=np.insert(events.start, place, start),
        end=np.insert(events.end, place, events.end[inner[last]]),
        value=value,
    )
