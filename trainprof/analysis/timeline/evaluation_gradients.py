"""Evaluation that takes gradients itself: forces of a potential, an attack, residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainprof.analysis.timeline.events import Events, Int64, Nesting
from trainprof.analysis.timeline.iterations import LEARNING, LOADER_CALLS
from trainprof.record.schema import ForwardFlag, Kind


def with_unlearnt_as_forwards(events: Events, nesting: Nesting) -> Events:
    """Returns the events as evaluation is to be told by: what nothing learns from has no gradients.

    Batches of one loader on end are looked at together, with all that comes before another loader
    is asked. Nothing learns from them where no update follows a backward and no model is in
    training mode, while models are wherever updates follow: forwards and backwards then count as
    forwards without gradients.

    Args:
        events, nesting: Of the training thread.
    """
    stretches = _stretches(events, nesting)
    updates = events.start[events.is_kind(*LEARNING[1:])]
    if len(stretches) == 0 or len(updates) == 0:
        return events
    every, backward = events.is_kind(Kind.FORWARD), events.is_kind(Kind.BACKWARD)
    outermost = every & ~nesting.inside(every | backward)
    trains = outermost & ((events.flags & ForwardFlag.TRAINING) > 0)
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
    found: Int64 = np.bincount(place[place >= 0], minlength=len(stretches))
    return found
