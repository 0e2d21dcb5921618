"""Whether a pass over a loader trains or evaluates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.events import Bool, Events, Int64, Nesting
from trainprof.analysis.passes import EVALUATION, LEARNING, OTHER, TRAINING, Passes
from trainprof.record.schema import ForwardFlag, Kind

_NEVER: Final = np.iinfo(np.int64).max


def decide_stages(
    passes: list[Passes], events: Events, nesting: Nesting, update_ends: Int64
) -> list[Passes]:
    """Tells training from evaluation.

    A pass trains when a backward or an update lies between its batches. One without is evaluation
    if there were forwards, else undecided. Where no loader trains by that rule (rollouts), the one
    consumed in most steps does.

    Args:
        passes: As found.
        events, nesting: The training thread's.
        update_ends: Ends of its updates, ns.
    """
    facts = _ThreadFacts.of(events, nesting)
    decided = [_decide(p, events, update_ends, facts) for p in passes]
    if not any(p.role == TRAINING for p in decided):
        decided = [_decide_by_consumption(p, events, update_ends) for p in decided]
    return decided


@dataclass(frozen=True, slots=True)
class _ThreadFacts:
    """Sorted times of what the training thread did, for counting inside intervals."""

    learning: Int64
    forwards: Int64
    is_grad: Int64
    next_starts: Int64
    trains_without_backward: bool

    @staticmethod
    def of(events: Events, nesting: Nesting) -> _ThreadFacts:
        every = events.is_kind(Kind.FORWARD)
        forward = every & ~nesting.inside(every | events.is_kind(Kind.BACKWARD))
        is_grad = (events.flags[forward] & ForwardFlag.GRAD) > 0
        is_training = (events.flags[forward] & ForwardFlag.TRAINING) > 0
        learning = events.start[events.is_kind(*LEARNING)]
        return _ThreadFacts(
            learning=learning,
            forwards=events.start[forward],
            is_grad=np.concatenate([[0], np.cumsum(is_grad)]),
            next_starts=events.start[events.is_kind(Kind.LOADER_NEXT)],
            trains_without_backward=bool(
                len(learning) == 0 and len(is_grad) and (is_grad & is_training).mean() > 0.5
            ),
        )

    def learns_between(self, start: Int64, end: Int64) -> Bool:
        """Whether a backward or an update begins in each [start, end)."""
        found: Bool = np.searchsorted(self.learning, end) > np.searchsorted(self.learning, start)
        return found

    def forwards_between(self, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Forwards that begin in each interval, and those of them in grad mode."""
        first, last = np.searchsorted(self.forwards, start), np.searchsorted(self.forwards, end)
        return last - first, self.is_grad[last] - self.is_grad[first]

    def work_learns(self, after: Int64, before: Int64 | int = _NEVER) -> Bool:
        """Whether the compute that follows each time learns, before another batch is taken.

        It must begin before `before`.
        """
        if len(self.forwards) == 0:
            return np.zeros(len(after), dtype=bool)
        forward = np.append(self.forwards, _NEVER)[np.searchsorted(self.forwards, after)]
        place = np.searchsorted(self.next_starts, forward)
        until = np.append(self.next_starts, _NEVER)[place]
        return (forward < before) & self.learns_between(after, until)


def _decide(p: Passes, events: Events, update_ends: Int64, facts: _ThreadFacts) -> Passes:
    if facts.trains_without_backward:
        learns = p.batches > 0
    else:
        learns = _learns(p, facts)
        learns &= ~_is_taken_in_portions(p, learns, events, facts)
    # Look-ahead fetchers raise StopIteration before the last batch is used.
    reach = np.append(p.start[1:], _NEVER)
    forwards, in_grad = facts.forwards_between(p.start, np.where(p.is_ended, p.end, reach))
    trained = int(p.batches[learns].sum())
    if trained and (
        trained * 2 >= int(p.batches.sum()) or _is_in_most_steps(p, learns, events, update_ends)
    ):
        learns |= _is_cut_off(p, learns, facts)
        evaluates = (forwards > 0) & (in_grad == 0) & p.is_ended
        role = TRAINING
    else:
        evaluates = forwards > 0
        role = EVALUATION if (evaluates & ~learns).any() else OTHER
    stage = np.where(learns, TRAINING, np.where(evaluates, EVALUATION, OTHER))
    return replace(p, stage=stage.astype("<U10"), role=role)


def _is_in_most_steps(p: Passes, learns: Bool, events: Events, update_ends: Int64) -> bool:
    """Whether most of the steps between its first and last learning pass take a batch of it."""
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    number = np.searchsorted(p.start, taken, side="right") - 1
    taken = taken[(number >= 0) & learns[np.maximum(number, 0)]]
    if len(taken) == 0:
        return False
    step = np.unique(np.searchsorted(update_ends, taken))
    return bool(len(step) * 2 >= step[-1] - step[0] + 1)


def _learns(p: Passes, facts: _ThreadFacts) -> Bool:
    before_end = np.where(p.is_ended, p.end - p.end_ns, p.last_next)
    learns = facts.learns_between(p.start, before_end)
    # Of a single batch the work comes after it: where it was not seen before the end of the pass.
    forwards, _ = facts.forwards_between(p.last_next, before_end)
    single = (p.batches == 1) & (~p.is_ended | (forwards == 0))
    learns |= single & facts.work_learns(p.last_next + 1, np.append(p.start[1:], _NEVER))
    return learns


def _is_taken_in_portions(p: Passes, learns: Bool, events: Events, facts: _ThreadFacts) -> Bool:
    """Passes that other loaders' training goes on around: few of their batches are learnt from.

    An endless iterator over the validation set gives a batch now and then, for years.
    """
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    number = np.searchsorted(p.start, taken, side="right") - 1
    taken, number = taken[number >= 0], number[number >= 0]
    if not learns.any() or len(taken) == 0 or len(facts.forwards) == 0:
        return np.zeros(len(p), dtype=bool)
    is_used = facts.work_learns(taken + 1)
    used = np.bincount(number[is_used], minlength=len(p))
    seen = np.bincount(number, minlength=len(p))
    found: Bool = (seen > 1) & (used * 2 < seen)
    return found


def _is_cut_off(p: Passes, learns: Bool, facts: _ThreadFacts) -> Bool:
    """The pass in which the run ended, before it could learn."""
    cut = np.zeros(len(p), dtype=bool)
    if len(p) > 1 and learns[-2] and not p.is_ended[-1]:
        cut[-1] = not facts.learns_between(p.start[-1:], np.array([_NEVER]))[0]
    return cut


def _decide_by_consumption(p: Passes, events: Events, update_ends: Int64) -> Passes:
    if len(update_ends) == 0:
        return p
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    steps_with = len(np.unique(np.searchsorted(update_ends, taken)))
    if steps_with * 2 < len(update_ends):
        return p
    return replace(p, stage=np.full(len(p), TRAINING, dtype="<U10"), role=TRAINING)
