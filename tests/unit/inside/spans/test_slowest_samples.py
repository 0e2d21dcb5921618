"""The samples that took longest, and that looking for them changes nothing."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from support.loaders import loader_probes
from support.session import FakeClock, Recorder
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from trainprof.inside.patching.patcher import UNCOUNTED_FILE
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.slowest_samples import SHORT_SAMPLE_NS, StampedIndices, asks_one_by_one
from trainprof.record.schema import Kind, SlowSampleFlag

Compare = Callable[..., Any]


class Costly(Dataset[int]):
    """Sample i takes `costs[i]` ns."""

    def __init__(self, clock: FakeClock, costs: list[int]) -> None:
        self.clock, self.costs = clock, costs

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> int:
        self.clock.advance(self.costs[index])
        return index


class Lists(Costly):
    seen: Any = None

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.seen = type(indices)
        return [self[index] for index in indices]


def recorded(
    recorder: Recorder, dataset: Any, clock: FakeClock, *, kept: int | None = None, **options: Any
) -> list[tuple[int, int, int, int]]:
    """(value, ns, start, flags) of each record."""
    told = {} if kept is None else {"slow_samples": kept}
    recorder.start(*loader_probes(FetchProbe), now=clock, options=told)
    list(DataLoader(dataset, **options))
    return [(e.value, e.ns, e.start, e.flags) for e in recorder.read().of(Kind.SLOW_SAMPLE)]


LONG = 10 * SHORT_SAMPLE_NS


def test_each_is_timed_and_named_by_its_index(recorder: Recorder) -> None:
    clock = FakeClock(1000)
    costs = [LONG, 3 * LONG, 2 * LONG]
    found = recorded(recorder, Costly(clock, costs), clock, batch_size=3)
    flag = SlowSampleFlag.IS_INDEX
    assert found == [
        (0, LONG, 1000, flag),
        (1, 3 * LONG, 1000 + LONG, flag),
        (2, 2 * LONG, 1000 + 4 * LONG, flag),
    ]


def test_collating_is_no_part_of_the_last_sample(recorder: Recorder) -> None:
    clock = FakeClock()

    def collate(samples: list[int]) -> list[int]:
        clock.advance(50 * LONG)
        return samples

    found = recorded(recorder, Costly(clock, [LONG] * 2), clock, batch_size=2, collate_fn=collate)
    assert [ns for _, ns, _, _ in found] == [LONG] * 2


@pytest.mark.parametrize(("kept", "expected"), [(2, [0, 1, 3, 5]), (1, [0, 3, 5]), (0, [])])
def test_the_slowest_so_far_are_recorded(
    recorder: Recorder, kept: int, expected: list[int]
) -> None:
    clock = FakeClock()
    costs = [LONG * n for n in (2, 1, 1, 3, 1, 4)]
    found = recorded(recorder, Costly(clock, costs), clock, kept=kept, batch_size=2)
    assert [index for index, *_ in found] == expected


def test_samples_that_take_next_to_nothing_are_not_timed_in_the_loop(recorder: Recorder) -> None:
    clock = FakeClock()
    costs = [SHORT_SAMPLE_NS // 10] * 40
    found = recorded(recorder, Costly(clock, costs), clock, kept=40, batch_size=4)
    assert len(found) == 4  # of the first batch, when nothing was known yet


def test_an_index_that_is_no_number_is_told_by_its_place(recorder: Recorder) -> None:
    clock = FakeClock()

    class Words(Costly):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__({"a": 0, "b": 1, True: 2, -1: 0}[index])

    dataset = Words(clock, [LONG, 2 * LONG, 3 * LONG])
    found = recorded(recorder, dataset, clock, batch_sampler=[["a", "b", True, -1]])
    assert [(place, flags) for place, _, _, flags in found] == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_subsets_samples_are_named_by_the_index_that_the_loader_knows(
    recorder: Recorder,
) -> None:
    clock = FakeClock()
    part = Subset(Costly(clock, [LONG, 2 * LONG, 3 * LONG]), [2, 0])
    found = recorded(recorder, part, clock, batch_size=2)
    assert [(index, ns) for index, ns, _, _ in found] == [(0, 3 * LONG), (1, LONG)]


class Stream(IterableDataset[int]):
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def __iter__(self) -> Any:
        for index in range(6):
            self.clock.advance(LONG)
            yield index


@pytest.mark.parametrize("make", [Stream, lambda clock: Lists(clock, [LONG] * 4)])
def test_where_torch_does_not_ask_one_by_one_nothing_is_told(
    recorder: Recorder, make: Callable[[FakeClock], Any]
) -> None:
    clock = FakeClock()
    assert recorded(recorder, make(clock), clock, batch_size=2) == []


def test_without_batching_nothing_is_told(recorder: Recorder) -> None:
    clock = FakeClock()
    assert recorded(recorder, Costly(clock, [LONG] * 4), clock, batch_size=None) == []


def test_samples_before_one_that_fails_are_told(recorder: Recorder) -> None:
    clock = FakeClock()

    class Broken(Costly):
        def __getitem__(self, index: int) -> int:
            super().__getitem__(index)
            if index == 2:
                raise KeyError(index)
            return index

    with pytest.raises(KeyError):
        recorded(recorder, Broken(clock, [LONG, 2 * LONG, 3 * LONG, 9]), clock, batch_size=4)
    told = [(e.value, e.ns) for e in recorder.read().of(Kind.SLOW_SAMPLE)]
    assert told[:3] == [(0, LONG), (1, 2 * LONG), (2, 3 * LONG)]


def test_stamps_later_than_the_end_do_not_count() -> None:
    times = iter(range(10, 100, 10))
    stamped = StampedIndices([7, 8, 9])
    stamped.clock = lambda: next(times)
    indices = iter(stamped)
    assert (next(indices), next(indices)) == (7, 8)
    assert stamped.stamps(end=25) == [10, 20]


# The same as without


class Wrapped:
    """Answers for another dataset, as wrappers do."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Asked(Costly):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


CLOCK = FakeClock()


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Costly(CLOCK, []), True),
        ([1, 2], True),
        (Subset(Costly(CLOCK, []), []), True),
        (Subset([1, 2], []), True),
        (Lists(CLOCK, []), False),
        (Subset(Lists(CLOCK, []), []), False),
        (Subset(Subset(Costly(CLOCK, []), []), []), False),
        (Wrapped(Lists(CLOCK, [])), False),
        (Wrapped(Costly(CLOCK, [])), False),
        (Asked(CLOCK, []), False),
        (torch.zeros(3), True),
    ],
)
def test_whom_torch_asks_one_by_one(dataset: Any, expected: bool) -> None:
    assert asks_one_by_one(dataset, torch) is expected


@pytest.mark.parametrize("wrap", [lambda x: x, Wrapped, lambda x: Subset(x, [0, 1])])
def test_a_dataset_gets_the_scripts_own_list(
    same_with_us: Compare, wrap: Callable[[Any], Any]
) -> None:
    def types() -> Any:
        dataset = Lists(CLOCK, [1, 1])
        list(DataLoader(wrap(dataset), batch_size=2))
        return dataset.seen

    assert same_with_us(types) == ("returned", list)


class Failing(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise LookupError(f"no sample {index}")
        return index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: Subset(x, range(6)), Wrapped])
def test_an_exception_of_a_sample_looks_the_same(
    same_with_us: Compare, workers: int, wrap: Callable[[Any], Any]
) -> None:
    kind, text = same_with_us(
        lambda: list(DataLoader(wrap(Failing()), batch_size=3, num_workers=workers))
    )
    assert kind == "raised"
    assert "no sample 4" in text


class Frames(Dataset[int]):
    """How many frames, and how many of ours, are around the making of a sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        frame: FrameType | None = sys._getframe()
        ours = 0
        while frame is not None:
            ours += frame.f_code.co_filename == UNCOUNTED_FILE
            frame = frame.f_back
        return ours


def test_no_more_frames_of_ours_are_around_a_sample(recorder: Recorder) -> None:
    recorder.start(*loader_probes(FetchProbe))
    [batch] = DataLoader(Frames(), batch_size=4)
    assert batch.tolist() == [2] * 4  # of `__next__` and `fetch`


def test_a_debugger_sees_nothing_of_ours_between_samples(recorder: Recorder) -> None:
    class Plain(Failing):
        def __getitem__(self, index: int) -> int:
            return index

    sample = Plain.__getitem__.__code__
    seen: list[Any] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        seen.append(frame.f_code)

    recorder.start(*loader_probes(FetchProbe))
    batches = iter(DataLoader(Plain(), batch_size=6))
    sys.settrace(trace)
    try:
        next(batches)
    finally:
        sys.settrace(None)
    first = seen.index(sample)
    assert seen[first : first + 6] == [sample] * 6


class Key:
    """An index that can be watched."""


def test_indices_and_batches_live_no_longer(same_with_us: Compare) -> None:
    class Sampler:
        def __iter__(self) -> Any:
            for _ in range(3):
                keys = [Key(), Key()]
                watched.extend(map(weakref.ref, keys))
                yield keys

    class Keyed(Dataset[Any]):
        def __getitem__(self, index: Key) -> Any:
            sample = Key()
            watched.append(weakref.ref(sample))
            return sample

    watched: list[weakref.ref[Key]] = []

    def alive() -> list[int]:
        watched.clear()
        counts = []
        for batch in DataLoader(Keyed(), batch_sampler=Sampler(), collate_fn=list):
            counts.append(sum(one() is not None for one in watched))
            del batch
            counts.append(sum(one() is not None for one in watched))
        return counts

    kind, counts = same_with_us(alive)
    assert kind == "returned"
    assert counts[1] < counts[0]
