"""The stretches of the training thread that are evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    LEARNING,
    LOADER_CALLS,
    TRAINING,
    LoaderIterations,
)
from trainprof.analysis.timeline.ledger import within
from trainprof.record.schema import ForwardFlag, Kind

if TYPE_CHECKING:
    from trainprof.analysis.loading.recreated_loaders import BuiltLoaders
    from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting

_NEVER: Final = np.iinfo(np.int64).max
# The share of rollouts spent between forwards, in an environment. Counting right answers slice by
# slice was measured to take a fifth, diffusion samples 6 %.
_PLAYED_FROM_SHARE: Final = 0.25
# Fewer forwards without any backward or update are a script that ended before it trained.
_LEAST_FORWARDS: Final = 3


def evaluated(
    loaders: list[LoaderIterations],
    events: Events,
    nesting: Nesting,
    update_ends: Int64,
    built: BuiltLoaders,
) -> Int64:
    """Returns the stretches that are evaluation, shape (n, 2), ns, disjoint and ascending.

    An iteration reaches to the last forward without gradients before training goes on. Forwards
    without a loader (`estimate_loss`) are evaluation as in `_without_loader`, unless they are
    rollouts: before all updates, without a loss, not from older data, and with an environment that
    takes time between the forwards. In a script that never trains, all its forwards are.
    """
    marks = _Marks.of(events, nesting)
    segments = [
        segment
        for p in loaders
        if p.of_stage(EVALUATION).any()
        for segment in (_whole_iterations(p, events, marks), _portions(p, events, marks))
    ]
    training = [p.loader for p in loaders if p.role == TRAINING]
    asked = events.where(events.is_kind(Kind.LOADER_NEXT) & np.isin(events.site, training))
    by_hand = _without_loader(events, marks, asked.start, update_ends)
    older = _batches_of_older_data(asked, by_hand, built)
    if _may_be_rollouts(by_hand, events, older, update_ends):
        took_ns = int((by_hand[:, 1] - by_hand[:, 0]).sum())
        if _between_forwards_ns(by_hand, events, marks) >= _PLAYED_FROM_SHARE * took_ns:
            by_hand = by_hand[:0]
    stretches = _merged(np.concatenate([*segments, by_hand]), events, nesting)
    if len(stretches) or len(update_ends) or training:
        return stretches
    # Inference alone, whatever the model's mode and with or without gradients.
    forwards = np.flatnonzero(marks.top & events.is_kind(Kind.FORWARD))
    if len(forwards) < _LEAST_FORWARDS:
        return stretches
    return np.array([[events.start[forwards[0]], events.end[forwards[-1]]]], dtype=np.int64)


def evaluated_stretches(p: LoaderIterations, calls: Events, segments: Int64) -> tuple[Int64, Int64]:
    """Returns pairs: the number of an iteration that evaluates, and of a stretch with its batches.

    An iterator that evaluation takes a few batches at a time from has several stretches.
    """
    taken = calls.start[calls.is_kind(Kind.LOADER_NEXT) & (calls.site == p.loader)]
    number, stretch = p.number_at(taken), np.searchsorted(segments[:, 0], taken, side="right") - 1
    chosen = (number >= 0) & (stretch >= 0)
    chosen[chosen] = p.of_stage(EVALUATION)[number[chosen]]
    chosen[chosen] = taken[chosen] < segments[stretch[chosen], 1]
    number, stretch = number[chosen], stretch[chosen]
    is_first = (np.diff(number, prepend=-1) != 0) | (np.diff(stretch, prepend=-1) != 0)
    return number[is_first], stretch[is_first]


def evaluation_ns(p: LoaderIterations, calls: Events, segments: Int64) -> Int64:
    """Returns the evaluation time of each iteration, from first to last call, shape (n,)."""
    number, stretch = evaluated_stretches(p, calls, segments)
    begins = np.maximum(segments[stretch, 0], p.start[number])
    ends = np.minimum(segments[stretch, 1], p.end[number])
    total = np.bincount(number, weights=np.maximum(ends - begins, 0), minlength=len(p))
    return total.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Masks of outermost events: all, forwards and losses without gradients, training only."""

    top: Bool
    quiet: Bool
    barrier: Bool

    @staticmethod
    def of(events: Events, nesting: Nesting) -> _Marks:
        top = nesting.parent < 0
        no_grad = ~events.has(ForwardFlag.GRAD)
        grad = events.is_kind(Kind.FORWARD) & ~no_grad
        learns = events.is_kind(*LEARNING, Kind.ZERO_GRAD, Kind.CHECKPOINT_SAVE)
        return _Marks(
            top=top,
            quiet=top & events.is_kind(Kind.FORWARD, Kind.LOSS) & no_grad,
            barrier=top & (grad | learns),
        )


def _whole_iterations(p: LoaderIterations, events: Events, marks: _Marks) -> Int64:
    """Iterations with no training inside, each from its iterator to its last forward."""
    chosen = np.flatnonzero(p.of_stage(EVALUATION) & ~_is_in_portions(p, events))
    others = marks.top & events.is_kind(*LOADER_CALLS) & (events.site != p.loader)
    limit = _next_of(events.start[marks.barrier | others], p.last_next[chosen])
    limit = np.minimum(limit, np.append(p.start[1:], _NEVER)[chosen])
    ends = _last_quiet_end(events, marks, p.end[chosen], limit)
    return np.stack([p.start[chosen], ends], axis=1)


def _portions(p: LoaderIterations, events: Events, marks: _Marks) -> Int64:
    """Iterations with training in between: each run of calls, until the last forward after it."""
    chosen = p.of_stage(EVALUATION) & _is_in_portions(p, events)
    calls = np.flatnonzero(marks.top & events.is_kind(*LOADER_CALLS) & (events.site == p.loader))
    number = p.number_at(events.start[calls])
    calls = calls[(number >= 0) & chosen[np.maximum(number, 0)]]
    if len(calls) == 0:
        return np.empty((0, 2), dtype=np.int64)
    others = marks.top & events.is_kind(*LOADER_CALLS) & (events.site != p.loader)
    barriers = events.start[marks.barrier | others]
    firsts, lasts = _runs(np.searchsorted(barriers, events.start[calls]))
    limit = _next_of(barriers, events.start[calls[lasts]])
    ends = _last_quiet_end(events, marks, events.end[calls[lasts]], limit)
    return np.stack([events.start[calls[firsts]], ends], axis=1)


def _is_in_portions(p: LoaderIterations, events: Events) -> Bool:
    learning = events.start[events.is_kind(*LEARNING)]
    portions: Bool = np.searchsorted(learning, p.last_next) > np.searchsorted(learning, p.start)
    return portions


def _without_loader(events: Events, marks: _Marks, batches: Int64, update_ends: Int64) -> Int64:
    """Forwards that evaluate without a loader, from the first to the last in a row."""
    forward = events.where(marks.quiet & events.is_kind(Kind.FORWARD))
    calls = marks.top & events.is_kind(*LOADER_CALLS)
    barriers = events.start[marks.barrier | calls]
    if len(batches) and len(update_ends):
        trained = np.unique(events.site[marks.barrier & events.is_kind(Kind.FORWARD)])
        losses = events.start[marks.quiet & events.is_kind(Kind.LOSS)]
        is_plain = _next_of(losses, forward.start) < _next_of(barriers, forward.start)
        learning = events.start[events.is_kind(*LEARNING)]
        is_plain &= _next_of(batches, forward.start) <= _next_of(learning, forward.start)
        is_plain &= np.isin(forward.site, trained)
        evaluates = _between_batches(forward, is_plain, batches, update_ends)
    else:
        evaluates = _in_evaluation_mode(forward)
        evaluates &= _is_in_few_steps(forward, evaluates, update_ends)
    starts = forward.start[evaluates]
    if len(starts) == 0:
        return np.empty((0, 2), dtype=np.int64)
    firsts, lasts = _runs(np.searchsorted(barriers, starts))
    limit = _next_of(barriers, starts[lasts])
    return np.stack([starts[firsts], _last_quiet_end(events, marks, starts[lasts], limit)], axis=1)


def _between_batches(forward: Events, is_plain: Bool, batches: Int64, update_ends: Int64) -> Bool:
    """Which forwards come between an update and the next batch, and evaluate.

    A teacher runs between a batch and its update. A forward in training mode, or in most steps, has
    to come after all updates of a batch and be `is_plain`: of a trained model, for a loss. Else it
    may be a generator for another model, or a frozen part.
    """
    starts, in_evaluation_mode = forward.start, _in_evaluation_mode(forward)
    last_batch = np.searchsorted(batches, starts) - 1
    last_update = np.searchsorted(update_ends, starts, side="right") - 1
    is_ahead = last_batch < 0
    is_behind = (last_update >= 0) & (
        update_ends[np.maximum(last_update, 0)] > batches[np.maximum(last_batch, 0)]
    )
    is_plain = is_plain & is_behind & ~is_ahead
    usual, as_training = in_evaluation_mode & (is_ahead | is_behind), ~in_evaluation_mode & is_plain
    if not _is_in_few_steps(forward, usual, update_ends):
        usual &= is_plain
    evaluates: Bool = usual | (as_training & _is_in_few_steps(forward, as_training, update_ends))
    return evaluates


def _in_evaluation_mode(forward: Events) -> Bool:
    mask: Bool = ~forward.has(ForwardFlag.TRAINING)
    return mask


def _is_in_few_steps(forward: Events, chosen: Bool, update_ends: Int64) -> bool:
    """Whether at most every second step has one of some forwards."""
    steps_with = len(np.unique(np.searchsorted(update_ends, forward.start[chosen])))
    return steps_with * 2 <= len(update_ends) + 1


def _batches_of_older_data(asked: Events, stretches: Int64, built: BuiltLoaders) -> Int64:
    """When batches were requested of data that no earlier stretch of forwards can have produced."""
    before = np.searchsorted(stretches[:, 0], asked.start) - 1
    since = np.append(stretches[:, 1], _NEVER)[before]
    return asked.start[~built.are_of_new_data(asked.site.astype(np.int64), asked.start, since)]


def _may_be_rollouts(stretches: Int64, events: Events, batches: Int64, update_ends: Int64) -> bool:
    """Whether training may learn from the outputs of stretches of forwards without a loader.

    `batches` are those for training of older data.
    """
    if len(stretches) == 0 or len(update_ends) == 0 or update_ends[0] < stretches[0, 0]:
        return False
    first, last = stretches[0, 0], stretches[-1, 0]
    is_in_cycles = bool(((update_ends > first) & (update_ends < last)).any())
    takes_batches = bool(((batches > first) & (batches < last)).any())
    losses = events.start[events.is_kind(Kind.LOSS)]
    return is_in_cycles and not takes_batches and not within(stretches, losses).any()


def _between_forwards_ns(stretches: Int64, events: Events, marks: _Marks) -> int:
    """The time of stretches outside of the training thread's events, ns."""
    starts, ends = events.start[marks.top], events.end[marks.top]
    taken_ns = np.append(0, np.cumsum(ends - starts))
    first, behind = np.searchsorted(starts, stretches).T
    return int((stretches[:, 1] - stretches[:, 0] - (taken_ns[behind] - taken_ns[first])).sum())


def _runs(number: Int64) -> tuple[Int64, Int64]:
    """First and last index of each run of equal numbers."""
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    return firsts, np.append(firsts[1:], len(number)) - 1


def _next_of(times: Int64, after: Int64) -> Int64:
    """The first of the sorted `times` later than each of `after`."""
    return np.append(times, _NEVER)[np.searchsorted(times, after, side="right")]


def _last_quiet_end(events: Events, marks: _Marks, ends: Int64, limit: Int64) -> Int64:
    """Moves each end to that of the last quiet forward before its limit."""
    quiet = events.end[marks.quiet]
    if len(quiet) == 0:
        return ends
    last = np.searchsorted(quiet, limit, side="right") - 1
    return np.where(last >= 0, np.maximum(ends, quiet[np.maximum(last, 0)]), ends)


def _merged(segments: Int64, events: Events, nesting: Nesting) -> Int64:
    """Joins segments that overlap, without those that begin or end inside an outermost event.

    Those belong to the event around them: a loader that runs a model.
    """
    top = nesting.top()
    starts, ends = events.start[top], events.end[top]
    is_whole = np.ones(len(segments), dtype=bool)
    for column in (0, 1):
        around = np.searchsorted(starts, segments[:, column]) - 1
        is_whole &= (around < 0) | (ends[np.maximum(around, 0)] <= segments[:, column])
    segments = segments[is_whole]
    segments = segments[np.argsort(segments[:, 0], kind="stable")]
    if len(segments) == 0:
        return segments
    reach = np.maximum.accumulate(segments[:, 1])
    firsts = np.flatnonzero(np.append(True, segments[1:, 0] > reach[:-1]))
    return np.stack([segments[firsts, 0], np.maximum.reduceat(reach, firsts)], axis=1)
