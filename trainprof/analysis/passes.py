"""Passes over loaders, and whether each one trains or evaluates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.events import Bool, Events, Int64, Nesting
from trainprof.record.schema import ForwardFlag, Kind

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
OTHER: Final = "other"

LOADER_CALLS: Final = (
    Kind.LOADER_INIT,
    Kind.LOADER_RESET,
    Kind.LOADER_NEXT,
    Kind.LOADER_END,
    Kind.LOADER_ERROR,
)
_STARTS: Final = (Kind.LOADER_INIT, Kind.LOADER_RESET)
_LEARNING: Final = (Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of one loader, in order of time; arrays of shape (n_passes,).

    Attributes:
        loader: Its id in the log's texts.
        start, end: From the creation of the iterator to the end of its last call, ns.
        last_next: Start of the last `next` that gave a batch (or of the pass, without one), ns.
        is_ended: A StopIteration was seen.
        batches: Batches taken.
        init_ns: Creating or resetting the iterator.
        first_ns: The first `next`; -1 where there was none.
        wait_ns: All later ones together.
        end_ns: The `next` that raised StopIteration.
        stage: training|evaluation|other per pass.
        role: Of the loader as a whole.
    """

    loader: int
    start: Int64
    end: Int64
    last_next: Int64
    is_ended: Bool
    batches: Int64
    init_ns: Int64
    first_ns: Int64
    wait_ns: Int64
    end_ns: Int64
    stage: npt.NDArray[np.str_]
    role: str

    def __len__(self) -> int:
        return len(self.start)

    def of_stage(self, stage: str) -> Bool:
        mask: Bool = self.stage == stage
        return mask


def find_passes(events: Events, nesting_kinds: Bool) -> list[Passes]:
    """Finds the passes of every loader; stages are not decided yet.

    Args:
        events: All threads' events of the process.
        nesting_kinds: Mask of iterator resets inside another call of their loader, to be left out.
    """
    calls = events.where(events.is_kind(*LOADER_CALLS) & ~nesting_kinds)
    return [
        _passes_of(int(loader), calls.where(calls.site == loader))
        for loader in np.unique(calls.site)
    ]


def _passes_of(loader: int, calls: Events) -> Passes:
    is_start = calls.is_kind(*_STARTS)
    is_next = calls.is_kind(Kind.LOADER_NEXT)
    after_start = np.concatenate([[False], is_start[:-1]])
    # An iterator whose creation was not seen starts with its first batch.
    is_start |= is_next & (calls.value == 1) & ~after_start
    is_start[0] = True
    number = np.cumsum(is_start) - 1
    count = int(number[-1]) + 1
    length = calls.end - calls.start
    is_first = is_next & (calls.value <= 1)
    is_later = is_next & ~is_first
    is_stop = calls.is_kind(Kind.LOADER_END)

    def total(mask: Bool) -> Int64:
        sums = np.bincount(number[mask], weights=length[mask], minlength=count)
        return sums.astype(np.int64)

    firsts = np.flatnonzero(is_start)
    last_next = calls.start[firsts].copy()
    np.maximum.at(last_next, number[is_next], calls.start[is_next])
    has_first = np.bincount(number[is_first], minlength=count) > 0
    return Passes(
        loader=loader,
        start=calls.start[firsts],
        end=np.maximum.reduceat(calls.end, firsts),
        last_next=last_next,
        is_ended=np.bincount(number[is_stop], minlength=count) > 0,
        batches=np.bincount(number[is_next], minlength=count),
        init_ns=total(calls.is_kind(*_STARTS)),
        first_ns=np.where(has_first, total(is_first), -1),
        wait_ns=total(is_later | calls.is_kind(Kind.LOADER_ERROR)),
        end_ns=total(is_stop),
        stage=np.full(count, OTHER, dtype="<U10"),
        role=OTHER,
    )


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
    decided = [_decide(p, facts) for p in passes]
    if not any(p.role == TRAINING for p in decided):
        decided = [_decide_by_consumption(p, events, update_ends, facts) for p in decided]
    return decided


@dataclass(frozen=True, slots=True)
class _ThreadFacts:
    """Sorted times of what the training thread did, for counting inside intervals."""

    learning: Int64
    forwards: Int64
    is_grad: Int64
    next_starts: Int64
    learns: bool
    trains_without_backward: bool

    @staticmethod
    def of(events: Events, nesting: Nesting) -> _ThreadFacts:
        forward = events.is_kind(Kind.FORWARD) & ~nesting.inside(events.is_kind(Kind.FORWARD))
        is_grad = (events.flags[forward] & ForwardFlag.GRAD) > 0
        is_training = (events.flags[forward] & ForwardFlag.TRAINING) > 0
        learning = events.start[events.is_kind(*_LEARNING)]
        return _ThreadFacts(
            learning=learning,
            forwards=events.start[forward],
            is_grad=np.concatenate([[0], np.cumsum(is_grad)]),
            next_starts=events.start[events.is_kind(Kind.LOADER_NEXT)],
            learns=len(learning) > 0,
            trains_without_backward=bool(
                len(learning) == 0 and len(is_grad) and (is_grad & is_training).mean() > 0.5
            ),
        )

    def count(self, times: Int64, start: Int64, end: Int64) -> Int64:
        """How many of the sorted `times` lie in each [start, end)."""
        return np.searchsorted(times, end) - np.searchsorted(times, start)

    def forwards_between(self, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Forwards that begin in each interval, and those of them in grad mode."""
        first, last = np.searchsorted(self.forwards, start), np.searchsorted(self.forwards, end)
        return last - first, self.is_grad[last] - self.is_grad[first]

    def work_follows(self, after: Int64) -> Bool:
        """Whether the compute that follows each time learns, before another batch is taken."""
        index = np.searchsorted(self.forwards, after)
        has_forward = index < len(self.forwards)
        forward = self.forwards[np.minimum(index, len(self.forwards) - 1)]
        place = np.searchsorted(self.next_starts, forward)
        has_next = place < len(self.next_starts)
        until = self.next_starts[np.minimum(place, len(self.next_starts) - 1)]
        until = np.where(has_next, until, np.iinfo(np.int64).max)
        return has_forward & (self.count(self.learning, after, until) > 0)


def _decide(p: Passes, facts: _ThreadFacts) -> Passes:
    last_point = np.where(p.is_ended, p.end - p.end_ns, p.last_next)
    learns = facts.count(facts.learning, p.start, last_point) > 0
    single = (p.batches == 1) & ~p.is_ended
    if single.any() and len(facts.forwards) and len(facts.next_starts):
        learns |= single & facts.work_follows(p.last_next + 1)
    if facts.trains_without_backward:
        learns = p.batches > 0
    # Look-ahead fetchers raise StopIteration before the last batch is used.
    reach = np.append(p.start[1:], np.iinfo(np.int64).max)
    forwards, in_grad = facts.forwards_between(p.start, np.where(p.is_ended, p.end, reach))
    trained = int(p.batches[learns].sum())
    role = TRAINING if trained and trained * 2 >= int(p.batches.sum()) else OTHER
    if role == TRAINING:
        evaluates = ~learns & (forwards > 0) & (in_grad == 0) & p.is_ended
        stage = np.where(evaluates, EVALUATION, TRAINING)
    else:
        stage = np.where(learns, TRAINING, np.where(forwards > 0, EVALUATION, OTHER))
        role = EVALUATION if (stage == EVALUATION).any() else OTHER
    return replace(p, stage=stage.astype("<U10"), role=role)


def _decide_by_consumption(
    p: Passes, events: Events, update_ends: Int64, facts: _ThreadFacts
) -> Passes:
    if len(update_ends) == 0:
        return p
    taken = events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)]
    steps_with = len(np.unique(np.searchsorted(update_ends, taken)))
    if steps_with * 2 < len(update_ends):
        return p
    return replace(p, stage=np.full(len(p), TRAINING, dtype="<U10"), role=TRAINING)


def evaluation_segments(
    passes: list[Passes], events: Events, nesting: Nesting, update_ends: Int64
) -> Int64:
    """Returns the stretches of the training thread that are evaluation, shape (n, 2), ns, disjoint.

    A pass reaches to the last forward without gradients before training goes on. Where no loader
    trains, a run of such forwards that happens in few steps is evaluation too (`estimate_loss`).
    """
    top = np.zeros(len(events), dtype=bool)
    top[nesting.top()] = True
    no_grad = (events.flags & ForwardFlag.GRAD) == 0
    quiet = top & events.is_kind(Kind.FORWARD, Kind.LOSS) & no_grad
    grad = events.is_kind(Kind.FORWARD) & ~no_grad
    barrier = top & (grad | events.is_kind(*_LEARNING, Kind.ZERO_GRAD, Kind.CHECKPOINT_SAVE))
    found: list[tuple[int, int]] = []
    evaluating = [p for p in passes if p.of_stage(EVALUATION).any()]
    for p in evaluating:
        other_loader = top & events.is_kind(*LOADER_CALLS) & (events.site != p.loader)
        barriers = events.start[barrier | other_loader]
        ends_of_quiet = events.end[quiet]
        for i in np.flatnonzero(p.of_stage(EVALUATION)).tolist():
            later = np.searchsorted(barriers, p.last_next[i], side="right")
            limit = int(barriers[later]) if later < len(barriers) else np.iinfo(np.int64).max
            if i + 1 < len(p):
                limit = min(limit, int(p.start[i + 1]))
            last = np.searchsorted(ends_of_quiet, limit, side="right") - 1
            end = int(p.end[i])
            if last >= 0:
                end = max(end, int(ends_of_quiet[last]))
            found.append((int(p.start[i]), end))
    if not any(p.role == TRAINING for p in passes):
        found += _quiet_runs(events, quiet, barrier, update_ends)
    return _merge(found)


def _quiet_runs(
    events: Events, quiet: Bool, barrier: Bool, update_ends: Int64
) -> list[tuple[int, int]]:
    """Runs of forwards without gradients that happen in fewer than half of the steps."""
    starts, ends = events.start[quiet], events.end[quiet]
    if len(starts) == 0:
        return []
    steps_with = len(np.unique(np.searchsorted(update_ends, starts)))
    if steps_with * 2 > len(update_ends) + 1:
        return []
    run = np.searchsorted(events.start[barrier], starts)
    firsts = np.flatnonzero(np.diff(run, prepend=-1))
    lasts = np.append(firsts[1:], len(run)) - 1
    return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))


def _merge(segments: list[tuple[int, int]]) -> Int64:
    merged: list[list[int]] = []
    for start, end in sorted(segments):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, dtype=np.int64).reshape(-1, 2)
