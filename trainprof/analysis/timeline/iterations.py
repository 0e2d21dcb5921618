"""Iterations over loaders: from the creation of an iterator to the end of its last batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.timeline.events import Bool, Events, Int64, nest, rows_of
from trainprof.analysis.timeline.intervals import paused_ns
from trainprof.record.schema import Kind

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
_NEVER: Final = np.iinfo(np.int64).max
_STARTS: Final = (Kind.LOADER_INIT, Kind.LOADER_RESET)
LEARNING: Final = (Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)


@dataclass(frozen=True, slots=True)
class Turns:
    """When batches of an iteration are requested, and its number, if they are nested."""

    start: Int64
    number: Int64


@dataclass(frozen=True, slots=True)
class LoaderIterations:
    """Iterations over one loader, in order of their starts; arrays of shape (n_iterations,), ns.

    Attributes:
        start, end: From the creation of the iterator to the end of its last call.
        after_first: Start of the call that followed the first batch; _NEVER where none did.
        last_next: Start of the last `next` that returned a batch (or of the iteration).
        is_ended: It raised StopIteration.
        is_resumed: Its iterator existed before, with persistent workers.
        first_ns: The first `next`, without garbage collection; -1 without one.
        wait_ns: The sum of later ones, also without it.
        end_ns: The `next` that raised StopIteration.
        overlaps: It began during an earlier iteration, which then continued.
        stage, role: training|evaluation|other, per iteration and of the loader as a whole.
        dataset: A number that loaders of the same dataset share; 0 where unknown.
        turns: None where each iteration is over when the next one begins.
    """

    loader: int
    start: Int64
    end: Int64
    after_first: Int64
    last_next: Int64
    is_ended: Bool
    is_resumed: Bool
    batches: Int64
    init_ns: Int64
    first_ns: Int64
    wait_ns: Int64
    end_ns: Int64
    overlaps: Bool
    stage: npt.NDArray[np.str_]
    role: str
    dataset: int = 0
    turns: Turns | None = None

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Bool) -> LoaderIterations:
        chosen, turns = rows_of(self, mask), self.turns
        if turns is None:
            return chosen
        number = np.where(mask, np.cumsum(mask) - 1, -1)[turns.number]
        return replace(chosen, turns=Turns(turns.start, number))

    def number_at(self, times: Int64) -> Int64:
        """Returns the number of the iteration in use at each time, -1 before the first; ns."""
        starts = self.start if self.turns is None else self.turns.start
        numbers: Int64 = np.searchsorted(starts, times, side="right") - 1
        return numbers if self.turns is None else np.append(self.turns.number, -1)[numbers]

    def among(self, chosen: Bool, times: Int64) -> Bool:
        """Returns which times lie in, or after, one of the chosen iterations."""
        number = self.number_at(times)
        is_chosen: Bool = (number >= 0) & chosen[number]
        return is_chosen

    def of_stage(self, stage: str) -> Bool:
        mask: Bool = self.stage == stage
        return mask

    def trained(self) -> Bool:
        """Returns the training iterations with a batch: epochs, if it feeds training."""
        mask: Bool = self.of_stage(TRAINING) & (self.batches > 0)
        return mask


def with_first_batches(events: Events) -> Events:
    """Numbers the first batch of every iterator 1.

    torchdata's StatefulDataLoader continues from the number in its state.
    """
    calls = np.flatnonzero(events.is_kind(*LOADER_CALLS))
    calls = calls[np.argsort(events.site[calls], kind="stable")]
    kinds, sites = events.kind[calls], events.site[calls]
    follows = np.isin(kinds[:-1], _STARTS) & (sites[1:] == sites[:-1])
    resumed = calls[1:][follows & (kinds[1:] == Kind.LOADER_NEXT) & (events.value[calls[1:]] > 1)]
    if len(resumed) == 0:
        return events
    value = events.value.copy()
    value[resumed] = 1
    return replace(events, value=value)


def find_iterations(events: Events) -> list[LoaderIterations]:
    """Finds the iterations over every loader, from all threads' events, without their stages."""
    calls = events.where(events.is_kind(*LOADER_CALLS))
    calls = calls.where(~_nested_starts(calls))
    length = calls.end - calls.start - paused_ns(calls, events)
    return [
        _iterations_of(int(loader), calls.where(calls.site == loader), length[calls.site == loader])
        for loader in np.unique(calls.site)
    ]


def _nested_starts(calls: Events) -> Bool:
    """Marks resets and creations inside another call of the same loader: not a new iteration."""
    mask = np.zeros(len(calls), dtype=bool)
    is_start = calls.is_kind(*_STARTS)
    for thread in np.unique(calls.thread[is_start]).tolist():
        index = np.flatnonzero(calls.thread == thread)
        parent = nest(calls.where(index)).parent
        same = (parent >= 0) & (calls.site[index[parent]] == calls.site[index])
        mask[index[same]] = is_start[index[same]]
    return mask


def _iterations_of(loader: int, calls: Events, length: Int64) -> LoaderIterations:
    is_start = calls.is_kind(*_STARTS)
    is_next = calls.is_kind(Kind.LOADER_NEXT)
    after_start = np.concatenate([[False], is_start[:-1]])
    # An iterator whose creation was not seen starts with its first batch.
    is_start |= is_next & (calls.value == 1) & ~after_start
    is_start[0] = True
    number = np.cumsum(is_start) - 1
    count = int(number[-1]) + 1
    overlaps = _overlapping(calls, is_start, is_next)
    nested = _nested_numbers(calls, is_start, is_next) if overlaps.any() else None
    number = number if nested is None else nested
    is_first = is_next & (calls.value <= 1)
    is_later = is_next & ~is_first
    is_stop = calls.is_kind(Kind.LOADER_END)

    def total(mask: Bool) -> Int64:
        sums = np.bincount(number[mask], weights=length[mask], minlength=count)
        return sums.astype(np.int64)

    firsts = np.flatnonzero(is_start)
    after_first = np.full(count, _NEVER)
    follows = is_later | is_stop
    np.minimum.at(after_first, number[follows], calls.start[follows])
    last_next = calls.start[firsts].copy()
    np.maximum.at(last_next, number[is_next], calls.start[is_next])
    ends = calls.end[firsts].copy()
    np.maximum.at(ends, number, calls.end)
    turns = np.flatnonzero(np.diff(number, prepend=-1))
    has_first = np.bincount(number[is_first], minlength=count) > 0
    return LoaderIterations(
        loader=loader,
        start=calls.start[firsts],
        end=ends,
        after_first=after_first,
        last_next=last_next,
        is_ended=np.bincount(number[is_stop], minlength=count) > 0,
        is_resumed=calls.is_kind(Kind.LOADER_RESET)[firsts],
        batches=np.bincount(number[is_next], minlength=count),
        init_ns=total(calls.is_kind(*_STARTS)),
        first_ns=np.where(has_first, total(is_first), -1),
        wait_ns=total(is_later | calls.is_kind(Kind.LOADER_ERROR)),
        end_ns=total(is_stop),
        overlaps=overlaps,
        stage=np.full(count, OTHER, dtype="<U10"),
        role=OTHER,
        turns=None if nested is None else Turns(calls.start[turns], number[turns]),
    )


def _overlapping(calls: Events, is_start: Bool, is_next: Bool) -> Bool:
    """Marks the iterations after whose start an earlier iterator continued.

    Iterators number their batches: a number that follows an earlier iterator's last one, not the
    newest one's, is that iterator's.
    """
    number_of_iteration = np.cumsum(is_start) - 1
    given = np.cumsum(is_next)
    before: Int64 = (given - is_next)[is_start][number_of_iteration]
    if (calls.value == given - before)[is_next].all():
        return np.zeros(int(is_start.sum()), dtype=bool)
    overlapping: list[bool] = []
    earlier, last = Counter[int](), 0
    values = calls.value.astype(np.int64).tolist()
    for starts, gives, number in zip(is_start.tolist(), is_next.tolist(), values, strict=True):
        if starts:
            if overlapping:
                earlier[last] += 1
            overlapping.append(False)
            last = 0
        if not gives:
            continue
        if number == last + 1:
            last = number
        elif earlier[number - 1] > 0:
            earlier[number - 1] -= 1
            earlier[number] += 1
            overlapping[-1] = True
    return np.array(overlapping, dtype=bool)


def _nested_numbers(calls: Events, is_start: Bool, is_next: Bool) -> Int64 | None:
    """Returns the iteration of each call, where one continues after those nested in it.

    For example, evaluation on some batches of the training loader within an epoch. None where
    iterators take turns, as with zip.
    """
    begun: list[list[int]] = []  # of each that may go on: number, last batch, whether it has before
    numbers: list[int] = []
    count = 0
    is_stop = calls.is_kind(Kind.LOADER_END).tolist()
    values = calls.value.astype(np.int64).tolist()
    rows = zip(is_start.tolist(), is_next.tolist(), is_stop, values, strict=True)
    for starts, gives, stops, batch in rows:
        if starts:
            begun.append([count, batch - 1 if gives else 0, False])
            count += 1
        if gives and begun[-1][1] != batch - 1:
            while begun and begun[-1][1] != batch - 1:
                begun.pop()
            if not begun:
                return None
            begun[-1][2] = True
        if gives:
            begun[-1][1] = batch
        elif stops:
            # What was left early gave fewer batches than the one around it that ends now.
            if len(begun) > 1 and begun[-2][2] and begun[-2][1] > begun[-1][1]:
                begun.pop()
            begun[-1][1] = -1  # no batch follows
        numbers.append(begun[-1][0])
    return np.array(numbers, dtype=np.int64)


def feeders(loaders: list[LoaderIterations]) -> list[LoaderIterations]:
    """Returns the loaders whose training iterations are epochs, by number of batches.

    A loader used alongside another, or in turns with it, has no epochs, unless both are of the same
    dataset: epochs with and without workers, for example.
    """
    chosen: list[tuple[LoaderIterations, LoaderIterations]] = []
    for p in _by_batches(loaders):
        own = p.where(p.trained())
        if all(_is_apart(own, other) for _, other in chosen):
            chosen.append((p, own))
    return [p for p, _ in chosen]


def _is_apart(p: LoaderIterations, other: LoaderIterations) -> bool:
    """Whether epochs come before or after another loader's, or between them on the same data."""
    if p.end.max() <= other.start.min() or other.end.max() <= p.start.min():
        return True
    order = np.argsort(np.append(p.start, other.start), kind="stable")
    starts, ends = np.append(p.start, other.start)[order], np.append(p.end, other.end)[order]
    return p.dataset == other.dataset > 0 and bool((ends[:-1] <= starts[1:]).all())


def epoch_starts(loaders: list[LoaderIterations]) -> Int64:
    """Returns the starts of epochs, ascending, ns."""
    starts = [p.start[p.trained()] for p in feeders(loaders)]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *starts]))


def feeding_iterations(
    loaders: list[LoaderIterations], learning: Int64, step_ends: Int64
) -> list[tuple[LoaderIterations, Bool]]:
    """Returns the loaders that feed training, and which of their iterations count.

    Of iterations that overlap (a labelled and an unlabelled batch in every step) those over the
    loader with most batches count.
    """
    feeding = []
    begins = ends = np.empty(0, dtype=np.int64)
    for p in _by_batches(loaders):
        place = np.searchsorted(step_ends, p.end)
        used = step_ends[np.minimum(place, len(step_ends) - 1)] if len(step_ends) else p.end
        reach = np.where(is_used_later(p, learning), np.maximum(p.end, used), p.end)
        is_apart = np.searchsorted(ends, p.start, side="right") == np.searchsorted(begins, reach)
        counted = p.trained() & is_apart
        begins = np.sort(np.concatenate([begins, p.start[counted]]))
        ends = np.sort(np.concatenate([ends, reach[counted]]))
        feeding.append((p, counted))
    return feeding


def is_used_later(p: LoaderIterations, learning: Int64) -> Bool:
    """Returns the training iterations whose last batch is learnt from after their end.

    Those without StopIteration, and those that prefetch: accelerate's loaders request the second
    batch before they yield the first.
    """
    looks_ahead = np.searchsorted(learning, p.after_first) == np.searchsorted(learning, p.start)
    mask: Bool = p.trained() & (~p.is_ended | looks_ahead)
    return mask


def _by_batches(loaders: list[LoaderIterations]) -> list[LoaderIterations]:
    training = [p for p in loaders if p.role == TRAINING and p.trained().any()]
    return sorted(training, key=lambda p: (-int(p.batches[p.trained()].sum()), int(p.start[0])))
