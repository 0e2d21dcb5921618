"""Whether an iteration over a loader trains or evaluates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting
from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    LEARNING,
    OTHER,
    TRAINING,
    LoaderIterations,
)
from trainprof.record.schema import ForwardFlag, Kind

_NEVER: Final = np.iinfo(np.int64).max


def decide_stages(
    loaders: list[LoaderIterations], events: Events, nesting: Nesting, update_ends: Int64
) -> list[LoaderIterations]:
    """Decides which iterations train and which evaluate.

    An iteration trains if a backward or an update lies between its batches. Others evaluate if they
    have forwards, else they are undecided. Over a loader that trains, forwards of evaluation have
    no gradients, or are in evaluation mode while models train in training mode. Where no loader
    trains by that rule (rollouts), the one consumed in most steps does.
    """
    work = _ThreadWork.of(events, nesting)
    decided = [_decide(p, events, update_ends, work) for p in loaders]
    if not any(p.role == TRAINING for p in decided):
        decided = [_decide_by_consumption(p, events, update_ends) for p in decided]
    return decided


@dataclass(frozen=True, slots=True)
class _ThreadWork:
    """Sorted times of the training thread's work, for counting inside intervals.

    Attributes:
        learning: Starts of backwards and updates.
        forwards: Starts of outermost forwards.
        in_grad, in_loss: The number of forwards up to each in grad mode, and of those in the
            training models' mode.
        in_training_mode: The same in training mode; all, if models train in evaluation mode.
        next_starts: When batches were requested.
        trains_without_backward: Most forwards are as in training, but nothing learns.
    """

    learning: Int64
    forwards: Int64
    in_grad: Int64
    in_loss: Int64
    in_training_mode: Int64
    next_starts: Int64
    trains_without_backward: bool

    @staticmethod
    def of(events: Events, nesting: Nesting) -> _ThreadWork:
        every = events.is_kind(Kind.FORWARD)
        forward = every & ~nesting.inside(every | events.is_kind(Kind.BACKWARD))
        is_grad = (events.flags[forward] & ForwardFlag.GRAD) > 0
        is_training = (events.flags[forward] & ForwardFlag.TRAINING) > 0
        # Some train in evaluation mode: batch norms keep their pretrained statistics.
        is_loss = is_grad & (is_training | ~is_training.any())
        trains_in_mode = (is_grad & is_training).any()
        learning = events.start[events.is_kind(*LEARNING)]
        return _ThreadWork(
            learning=learning,
            forwards=events.start[forward],
            in_grad=np.append(0, np.cumsum(is_grad)),
            in_loss=np.append(0, np.cumsum(is_loss)),
            in_training_mode=np.append(0, np.cumsum(is_training | ~trains_in_mode)),
            next_starts=events.start[events.is_kind(Kind.LOADER_NEXT)],
            trains_without_backward=bool(
                len(learning) == 0 and len(is_grad) and (is_grad & is_training).mean() > 0.5
            ),
        )

    def learns_between(self, start: Int64, end: Int64) -> Bool:
        """Whether a backward or an update begins in each [start, end)."""
        learns: Bool = np.searchsorted(self.learning, end) > np.searchsorted(self.learning, start)
        return learns

    def forwards_between(self, start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
        """Forwards that begin in each interval; of those, the ones in grad and training mode."""
        first, last = np.searchsorted(self.forwards, start), np.searchsorted(self.forwards, end)
        counted = (self.in_grad, self.in_training_mode)
        in_grad, in_training_mode = (counts[last] - counts[first] for counts in counted)
        return last - first, in_grad, in_training_mode

    def work_learns(self, after: Int64, before: Int64 | int = _NEVER) -> Bool:
        """Whether computing that begins between the two times learns, before another batch."""
        begins, until = self._work(after)
        return (begins < before) & self.learns_between(after, until)

    def work_is_learnt_from(self, after: Int64, before: Int64) -> Bool:
        """Whether that computing leads to a loss that is learnt from before `before`.

        Other loaders may yield batches in between.
        """
        begins, until = self._work(after)
        first, last = np.searchsorted(self.forwards, after), np.searchsorted(self.forwards, until)
        is_loss = self.in_loss[last] > self.in_loss[first]
        return (begins < before) & is_loss & self.learns_between(after, before)

    def others_come_first(self, after: Int64) -> Bool:
        """Whether batches are taken before the computing after each time begins."""
        asked = np.searchsorted(self.next_starts, after)
        others_first: Bool = np.searchsorted(self.next_starts, self._work(after)[0]) > asked
        return others_first

    def _work(self, after: Int64) -> tuple[Int64, Int64]:
        """When the computing after each time begins, and when the next batch is taken after it."""
        begins = np.append(self.forwards, _NEVER)[np.searchsorted(self.forwards, after)]
        place = np.searchsorted(self.next_starts, begins)
        return begins, np.append(self.next_starts, _NEVER)[place]


def _decide(
    p: LoaderIterations, events: Events, update_ends: Int64, work: _ThreadWork
) -> LoaderIterations:
    tried = np.zeros(len(p), dtype=bool)
    if work.trains_without_backward:
        learns = p.batches > 0
    else:
        before_end = np.where(p.is_ended, p.end - p.end_ns, p.last_next)
        behind = _learns_behind(p, before_end, events, update_ends, work)
        tried = _is_tried_out(p, behind, events, update_ends, work)
        learns = work.learns_between(p.start, before_end) | (behind & ~tried)
        learns &= ~_is_taken_in_portions(p, learns, events, update_ends, work)
    trained, ends = int(p.batches[learns].sum()), _compute_ends(p, work)
    if trained and (
        trained * 2 >= int(p.batches.sum()) or _is_in_most_steps(p, learns, events, update_ends)
    ):
        evaluates = ~tried & _only_evaluates(p, ends, work)
        learns |= _is_cut_off(p, learns, work) & ~evaluates
        role = TRAINING
    else:
        until = np.where(p.is_ended, ends, np.append(p.start[1:], _NEVER))
        forwards, *_ = work.forwards_between(p.start, until)
        evaluates = (forwards > 0) & ~tried
        role = EVALUATION if (evaluates & ~learns).any() else OTHER
    stage = np.where(learns, TRAINING, np.where(evaluates, EVALUATION, OTHER))
    return replace(p, stage=stage.astype("<U10"), role=role)


def _compute_ends(p: LoaderIterations, work: _ThreadWork) -> Int64:
    """When each iteration ends; one left early ends at the next request of a batch.

    Prefetching loaders raise StopIteration before the last batch is used.
    """
    after = np.append(work.next_starts, _NEVER)
    left = after[np.searchsorted(work.next_starts, p.last_next, side="right")]
    forwards, *_ = work.forwards_between(p.last_next, p.end)
    is_over = p.is_ended & ((forwards > 0) | (p.batches != 1))
    return np.where(is_over, p.end, np.minimum(left, np.append(p.start[1:], _NEVER)))


def _only_evaluates(p: LoaderIterations, ends: Int64, work: _ThreadWork) -> Bool:
    """Iterations all of whose forwards are without gradients, or in evaluation mode.

    A single batch before training initializes a model.
    """
    forwards, in_grad, in_training_mode = work.forwards_between(p.start, ends)
    is_begun = (p.batches > 1) | work.learns_between(np.zeros_like(p.start), p.start)
    is_quiet = (in_grad == 0) | (in_training_mode == 0)
    evaluates: Bool = (forwards > 0) & is_quiet & (p.is_ended | is_begun)
    return evaluates


def _is_in_most_steps(
    p: LoaderIterations, counted: Bool, events: Events, update_ends: Int64
) -> bool:
    """Whether most steps between its first and last iteration that counts take a batch of it."""
    taken, number = _batches_of(p, events)
    taken = taken[counted[number]]
    if len(taken) == 0:
        return False
    step = _steps_at(taken, update_ends)
    return bool(len(step) * 2 >= step[-1] - step[0] + 1)


def _steps_at(times: Int64, update_ends: Int64) -> Int64:
    """Returns the numbers of the steps in which some times in order lie, each once."""
    steps = np.searchsorted(update_ends, times)
    return steps[np.diff(steps, prepend=-1) > 0]


def _batches_of(p: LoaderIterations, events: Events) -> tuple[Int64, Int64]:
    """When batches of a loader were requested, and the number of the iteration of each."""
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    number = p.number_at(taken)
    return taken[number >= 0], number[number >= 0]


def _learns_behind(
    p: LoaderIterations, before_end: Int64, events: Events, update_ends: Int64, work: _ThreadWork
) -> Bool:
    """Iterations of a single batch that is learnt from after it, and not before."""
    forwards, *_ = work.forwards_between(p.last_next, before_end)
    single = (p.batches == 1) & (~p.is_ended | (forwards == 0))
    after, before = p.last_next + 1, np.append(p.start[1:], _NEVER)
    learns: Bool = single & work.work_learns(after, before)
    shared = single & work.work_is_learnt_from(after, before)
    if shared.sum() * 2 > single.sum() and _is_in_most_steps(p, single, events, update_ends):
        learns |= shared
    return learns


def _is_tried_out(
    p: LoaderIterations, behind: Bool, events: Events, update_ends: Int64, work: _ThreadWork
) -> Bool:
    """Those of them before training whose batch is not used by the next computing.

    `next(iter(validation))` for a shape, or for pictures to show later. Not loaders with a batch in
    most steps, nor where all batches are taken before training.
    """
    first = update_ends[0] if len(update_ends) else 0
    goes_on = len(work.next_starts) > 0 and work.next_starts[-1] > first
    taken, number = _batches_of(p, events)
    steps = _steps_at(taken[behind[number]], update_ends)
    is_beside = len(steps) > 1 and _is_in_most_steps(p, behind, events, update_ends)
    if is_beside or not goes_on:
        return np.zeros(len(p), dtype=bool)
    tried: Bool = behind & (p.start < first) & work.others_come_first(p.last_next + 1)
    return tried


def _is_taken_in_portions(
    p: LoaderIterations, learns: Bool, events: Events, update_ends: Int64, work: _ThreadWork
) -> Bool:
    """Iterations during which other loaders train: few of their batches are learnt from.

    For example an endless iterator over the validation set. One with a batch in most steps may
    share their backward with other loaders, where losses are summed.
    """
    taken, number = _batches_of(p, events)
    if not learns.any() or len(taken) == 0 or len(work.forwards) == 0:
        return np.zeros(len(p), dtype=bool)
    is_used = work.work_learns(taken + 1)
    if _is_in_most_steps(p, learns, events, update_ends):
        is_used |= work.work_is_learnt_from(taken + 1, np.append(taken[1:], _NEVER))
    used = np.bincount(number[is_used], minlength=len(p))
    seen = np.bincount(number, minlength=len(p))
    portions: Bool = (seen > 1) & (used * 2 < seen)
    return portions


def _is_cut_off(p: LoaderIterations, learns: Bool, work: _ThreadWork) -> Bool:
    cut = np.zeros(len(p), dtype=bool)
    if len(p) > 1 and learns[-2] and not p.is_ended[-1]:
        cut[-1] = not work.learns_between(p.start[-1:], np.array([_NEVER]))[0]
    return cut


def _decide_by_consumption(
    p: LoaderIterations, events: Events, update_ends: Int64
) -> LoaderIterations:
    if len(update_ends) == 0:
        return p
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    steps_with = len(_steps_at(taken, update_ends))
    if steps_with * 2 < len(update_ends):
        return p
    return replace(p, stage=np.full(len(p), TRAINING, dtype="<U10"), role=TRAINING)
