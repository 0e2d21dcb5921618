"""What a closure that the script gives to an optimizer's step does, told from the update itself.

Lightning computes a whole training step in there, the user's code between the modules included.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.fetches import Details
from trainprof.analysis.timeline.events import Events, Int64, nest
from trainprof.record.schema import Kind

_COMPUTING: Final = (Kind.ZERO_GRAD, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


def with_closures(events: Events, details: Details) -> Events:
    """Returns the events with one more around each call of a closure, as far as it can be told.

    A call begins with its step, with its zero_grad, or with what first computes after the backward
    before (LBFGS calls it again and again). It ends with its backward, or where the optimizer goes
    on to its update, as torch's own tell: Lightning calls hooks of the user's in between.

    Args:
        events: Of one process, all threads, in order of start.
        details: Of the same.
    """
    threads = np.unique(events.thread[events.is_kind(Kind.OPTIMIZER_STEP)]).tolist()
    update = details[details["kind"] == Kind.UPDATE_BEGINS]
    told = {thread: update["start"][update["thread"] == thread] for thread in threads}
    each = (_calls_on(events, thread, np.sort(told[thread])) for thread in threads)
    found = [calls for calls in each if calls is not None]
    if not found:
        return events
    place, like, start, end = map(np.concatenate, zip(*found, strict=True))
    value: Any = np.insert(events.value, place, events.value.dtype.type(0))
    return Events(
        kind=np.insert(events.kind, place, np.uint8(Kind.CLOSURE)),
        flags=np.insert(events.flags, place, np.uint8(0)),
        thread=np.insert(events.thread, place, events.thread[like]),
        site=np.insert(events.site, place, events.site[like]),
        start=np.insert(events.start, place, start),
        end=np.insert(events.end, place, end),
        value=value,
    )


def _calls_on(
    events: Events, thread: int, update: Int64
) -> tuple[Int64, Int64, Int64, Int64] | None:
    """Finds the calls of closures on one thread, None where no step calls one.

    Args:
        events: Of all threads.
        thread: That one.
        update: When its steps went on to their updates, ns, in order.

    Returns:
        Of each call the one of all events before which it goes, that of the step it is called in,
        and its start and end in ns.
    """
    is_here = events.thread == thread
    own = events if is_here.all() else events.where(is_here)
    if not _computes_in_steps(own):
        return None
    rows = np.flatnonzero(is_here)
    parent = nest(own).parent
    above = np.maximum(parent, 0)
    in_step = (parent >= 0) & (own.kind[above] == Kind.OPTIMIZER_STEP)
    inner = np.flatnonzero(in_step & own.is_kind(*_COMPUTING))
    is_backward = own.kind[inner] == Kind.BACKWARD
    step = parent[inner]
    is_first = np.concatenate([[True], step[1:] != step[:-1]])[: len(inner)]
    begins = is_first.copy()
    begins[1:] |= is_backward[:-1] & ~is_backward[1:]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(inner))[: len(first)] - 1
    ends_in_backward = is_backward[last]
    first, last = first[ends_in_backward], last[ends_in_backward]
    # What an optimizer does before it lets the closure begin anew (SAM) is its own.
    from_step = is_first[first] & (own.kind[inner[first]] != Kind.ZERO_GRAD)
    start = np.where(from_step, own.start[step[first]], own.start[inner[first]])
    place = np.where(from_step, rows[step[first]] + 1, rows[inner[first]])
    end = own.end[inner[last]]
    if len(update):
        after = np.minimum(np.searchsorted(update, end), len(update) - 1)
        begun, is_last = update[after], np.append(step[first][1:] != step[first][:-1], True)
        is_told = is_last & (begun >= end) & (begun <= own.end[step[first]])
        end = np.where(is_told, begun, end)
    return place, rows[step[first]], start, end


def _computes_in_steps(events: Events) -> bool:
    """Says whether some backward began in a step of an optimizer: for little, as most do not."""
    step = np.flatnonzero(events.is_kind(Kind.OPTIMIZER_STEP))
    backward = events.start[events.is_kind(Kind.BACKWARD)]
    before = np.searchsorted(events.start[step], backward, side="right") - 1
    return bool((events.end[step[before[before >= 0]]] > backward[before >= 0]).any())
