"""Rewritten events: autograd threads, closures, evaluation that takes gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting, nest
from trainprof.analysis.timeline.iterations import LEARNING, LOADER_CALLS
from trainprof.record.schema import ForwardFlag, Kind

if TYPE_CHECKING:
    from trainprof.analysis.loading.fetches import Details


def with_unlearnt_as_forwards(events: Events, nesting: Nesting) -> Events:
    """Returns the events with unlearnt forwards and backwards as plain forwards.

    Stretches of batches of one loader count as a whole. A stretch is unlearnt if it has no update
    and no model in training mode, while models are in training mode wherever updates follow.
    """
    stretches = _stretches(events, nesting)
    updates = events.start[events.is_kind(*LEARNING[1:])]
    if len(stretches) == 0 or len(updates) == 0:
        return events
    every, backward = events.is_kind(Kind.FORWARD), events.is_kind(Kind.BACKWARD)
    outermost = every & ~nesting.inside(every | backward)
    trains = outermost & events.has(ForwardFlag.TRAINING)
    forwards = _count(stretches, events.start[outermost])
    in_training = _count(stretches, events.start[trains])
    is_learnt = _count(stretches, updates) > 0
    if not (in_training[is_learnt & (forwards > 0)] > 0).all():
        return events
    unlearnt = ~is_learnt & (forwards > 0) & (in_training == 0)
    unlearnt &= _count(stretches, events.start[backward]) > 0
    if not unlearnt.any():
        return events
    number = np.searchsorted(stretches, events.start, side="right") - 1
    chosen = (number >= 0) & unlearnt[np.maximum(number, 0)] & (every | backward)
    no_flags = events.flags & ~np.uint8(ForwardFlag.GRAD)
    return replace(
        events,
        kind=np.where(chosen, Kind.FORWARD, events.kind).astype(events.kind.dtype),
        flags=np.where(chosen, no_flags, events.flags).astype(events.flags.dtype),
    )


def _stretches(events: Events, nesting: Nesting) -> Int64:
    """Returns when each stretch of batches of one loader begins, ascending, ns."""
    is_next = events.is_kind(Kind.LOADER_NEXT)
    nexts = np.flatnonzero(is_next & ~nesting.inside(events.is_kind(*LOADER_CALLS)))
    loader = events.site[nexts].astype(np.int64)
    starts: Int64 = events.start[nexts][np.diff(loader, prepend=-1) != 0]
    return starts


def _count(stretches: Int64, times: Int64) -> Int64:
    """Counts the times in each stretch, which reaches to the next one."""
    place = np.searchsorted(stretches, times, side="right") - 1
    counts: Int64 = np.bincount(place[place >= 0], minlength=len(stretches))
    return counts


def on_calling_threads(events: Events) -> Events:
    """Returns the events with those of autograd's threads as part of the calling thread's.

    On a GPU, a backward's calls run on a thread of autograd while the caller waits.
    """
    computing = np.unique(events.thread[events.is_kind(*LEARNING, Kind.FORWARD)]).tolist()
    callers = np.unique(events.thread[events.is_kind(Kind.BACKWARD)]).tolist()
    if len(computing) < 2:
        return events
    host: dict[int, int] = {}
    for number in computing:
        others = (x for x in callers if x != number and host.get(x) != number)
        caller = next((x for x in others if _lie_in_backward(events, number, x).all()), None)
        if caller is not None:
            host[number] = caller
    thread = events.thread.copy() if host else events.thread
    for number, caller in host.items():
        while caller in host:
            caller = host[caller]
        thread[events.thread == number] = caller
    return replace(events, thread=thread)


def _lie_in_backward(events: Events, thread: int, caller: int) -> Bool:
    """Returns which of a thread's events lie wholly inside a backward of another's."""
    is_backward = events.is_kind(Kind.BACKWARD) & (events.thread == caller)
    own = events.thread == thread
    starts, ends = events.start[is_backward], np.maximum.accumulate(events.end[is_backward])
    before = np.searchsorted(starts, events.start[own], side="right")
    inside: Bool = (before > 0) & (events.end[own] <= ends[np.maximum(before - 1, 0)])
    return inside


_COMPUTING: Final = (Kind.ZERO_GRAD, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD)


def with_closures(events: Events, details: Details) -> Events:
    """Returns the events with an added one around each call of a closure.

    A call begins with its step, with its zero_grad, or with the first computing after the backward
    before (LBFGS calls it several times). It ends with its backward, or where torch's optimizer
    continues with its update: Lightning calls your hooks in between.
    """
    threads = np.unique(events.thread[events.is_kind(Kind.OPTIMIZER_STEP)]).tolist()
    update = details[details["kind"] == Kind.UPDATE_BEGINS]
    update_starts = {thread: update["start"][update["thread"] == thread] for thread in threads}
    each = (_calls_on(events, thread, np.sort(update_starts[thread])) for thread in threads)
    calls_of_threads = [calls for calls in each if calls is not None]
    if not calls_of_threads:
        return events
    place, like, start, end = map(np.concatenate, zip(*calls_of_threads, strict=True))
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
    """Finds the calls of closures on a thread, None without any.

    Returns:
        For each call: the event that follows it, the event of its step, its start and its end.
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
    # Work before the closure clears gradients (SAM) is the optimizer's.
    from_step = is_first[first] & (own.kind[inner[first]] != Kind.ZERO_GRAD)
    start = np.where(from_step, own.start[step[first]], own.start[inner[first]])
    place = np.where(from_step, rows[step[first]] + 1, rows[inner[first]])
    end = own.end[inner[last]]
    if len(update):
        after = np.minimum(np.searchsorted(update, end), len(update) - 1)
        begun, is_last = update[after], np.append(step[first][1:] != step[first][:-1], True)
        is_of_step = is_last & (begun >= end) & (begun <= own.end[step[first]])
        end = np.where(is_of_step, begun, end)
    return place, rows[step[first]], start, end


def _computes_in_steps(events: Events) -> bool:
    """Whether some backward began in a step of an optimizer: a cheap check, as most do not."""
    step = np.flatnonzero(events.is_kind(Kind.OPTIMIZER_STEP))
    backward = events.start[events.is_kind(Kind.BACKWARD)]
    before = np.searchsorted(events.start[step], backward, side="right") - 1
    return bool((events.end[step[before[before >= 0]]] > backward[before >= 0]).any())
