"""The samples that took longest, and that looking for them changes nothing."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from support.loaders import Numbers, loader_probes
from support.session import FakeClock, Recorder
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from trainprof.inside.spans.fetch import SHORT_SAMPLE_NS, FetchProbe, asks_one_by_one
from trainprof.record.schema import Kind, SlowSampleFlag

Compare = Callable[..., Any]
LONG = 10 * SHORT_SAMPLE_NS


class Costly(Numbers):
    """Sample i takes `costs[i]` ns."""

    def __init__(self, clock: FakeClock, costs: list[int]) -> None:
        super().__init__(len(costs))
        self.clock, self.costs = clock, costs

    def __getitem__(self, index: int) -> int:
        self.clock.advance(self.costs[index])
        return index


class Lists(Costly):
    seen: Any = None

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.seen = type(indices)
        return [self[index] for index in indices]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000)


def slow_samples(
    recorder: Recorder, dataset: Any, *, kept: int | None = None, **options: Any
) -> list[tuple[int, int, int, int]]:
    """(value, ns, start, flags) of each record."""
    limit = {} if kept is None else {"slow_samples": kept}
    recorder.start(*loader_probes(FetchProbe), now=dataset.clock, options=limit)
    list(DataLoader(dataset, **options))
    return recorded(recorder)


def recorded(recorder: Recorder) -> list[tuple[int, int, int, int]]:
    return [(e.value, e.ns, e.start, e.flags) for e in recorder.read().of(Kind.SLOW_SAMPLE)]


def test_each_is_timed_and_named_by_its_index(recorder: Recorder, clock: FakeClock) -> None:
    def collate(samples: list[int]) -> list[int]:
        clock.advance(50 * LONG)  # it is no part of the last sample
        return samples

    dataset = Costly(clock, [LONG, 3 * LONG, 2 * LONG])
    flag = SlowSampleFlag.IS_INDEX
    assert slow_samples(recorder, dataset, batch_size=3, collate_fn=collate) == [
        (0, LONG, 1000, flag),
        (1, 3 * LONG, 1000 + LONG, flag),
        (2, 2 * LONG, 1000 + 4 * LONG, flag),
    ]


@pytest.mark.parametrize(
    ("kept", "costs", "indices"),
    [
        (2, [LONG * n for n in (2, 1, 1, 3, 1, 4)], [0, 1, 3, 5]),
        (1, [LONG * n for n in (2, 1, 1, 3, 1, 4)], [0, 3, 5]),
        (0, [LONG] * 6, []),
        # Of samples that take next to nothing those of the first batch, when nothing was known.
        (40, [SHORT_SAMPLE_NS // 10] * 40, [0, 1]),
    ],
)
def test_the_slowest_so_far_are_recorded(
    recorder: Recorder, clock: FakeClock, kept: int, costs: list[int], indices: list[int]
) -> None:
    samples = slow_samples(recorder, Costly(clock, costs), kept=kept, batch_size=2)
    assert [index for index, *_ in samples] == indices


class Words(Costly):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__({"a": 0, "b": 1, True: 2, -1: 0}[index])


def test_other_indices_are_given_by_their_place(recorder: Recorder, clock: FakeClock) -> None:
    dataset = Words(clock, [LONG, 2 * LONG, 3 * LONG])
    samples = slow_samples(recorder, dataset, batch_sampler=[["a", "b", True, -1]])
    assert [(place, flags) for place, _, _, flags in samples] == [(0, 0), (1, 0), (2, 0), (3, 0)]


class Stream(IterableDataset[int]):
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def __iter__(self) -> Any:
        for index in range(6):
            self.clock.advance(LONG)
            yield index


@pytest.mark.parametrize(("kind", "size"), [(Stream, 2), (lambda x: Costly(x, [LONG] * 4), None)])
def test_where_torch_does_not_ask_one_by_one_nothing_is_recorded(
    recorder: Recorder, clock: FakeClock, kind: Callable[[FakeClock], Any], size: int | None
) -> None:
    assert slow_samples(recorder, kind(clock), batch_size=size) == []


def test_samples_before_one_that_fails_are_recorded(recorder: Recorder, clock: FakeClock) -> None:
    class Broken(Costly):
        def __getitem__(self, index: int) -> int:
            super().__getitem__(index)
            if index == 2:
                raise KeyError(index)
            return index

    with pytest.raises(KeyError):
        slow_samples(recorder, Broken(clock, [LONG, 2 * LONG, 3 * LONG, 9]), batch_size=4)
    samples = [(value, ns) for value, ns, *_ in recorded(recorder)]
    assert samples[:3] == [(0, LONG), (1, 2 * LONG), (2, 3 * LONG)]


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
        *((dataset, True) for dataset in (Costly(CLOCK, []), [1, 2], torch.zeros(3))),
        *((Subset(dataset, []), True) for dataset in (Costly(CLOCK, []), [1, 2])),
        *((dataset, False) for dataset in (Lists(CLOCK, []), Subset(Lists(CLOCK, []), []))),
        (Subset(Subset(Costly(CLOCK, []), []), []), False),
        *((Wrapped(kind(CLOCK, [])), False) for kind in (Lists, Costly)),
        (Asked(CLOCK, []), False),
    ],
)
def test_whom_torch_asks_one_by_one(dataset: Any, expected: bool) -> None:
    assert asks_one_by_one(dataset, torch) is expected


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: Subset(x, range(2)), Wrapped])
def test_the_dataset_gets_a_plain_list(same_with_us: Compare, wrap: Callable[[Any], Any]) -> None:
    def types() -> Any:
        dataset = Lists(CLOCK, [1, 1])
        list(DataLoader(wrap(dataset), batch_size=2))
        return dataset.seen

    assert same_with_us(types) == ("returned", list)


def test_a_debugger_sees_nothing_of_ours_between_samples(recorder: Recorder) -> None:
    sample = Numbers.__getitem__.__code__
    seen: list[Any] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        seen.append(frame.f_code)

    recorder.start(*loader_probes(FetchProbe))
    batches = iter(DataLoader(Numbers(), batch_size=6))
    sys.settrace(trace)
    try:
        next(batches)
    finally:
        sys.settrace(None)
    first = seen.index(sample)
    assert seen[first : first + 6] == [sample] * 6


class Key:
    """An index, or a sample, that can be watched."""


def test_indices_and_batches_live_no_longer(same_with_us: Compare) -> None:
    watched: list[weakref.ref[Key]] = []

    def key() -> Key:
        watched.append(weakref.ref(made := Key()))
        return made

    class Keyed(Dataset[Any]):
        def __getitem__(self, index: Key) -> Any:
            return key()

    def counts() -> list[int]:
        watched.clear()
        alive = []
        sampler: Any = ([key(), key()] for _ in range(3))
        for batch in DataLoader(Keyed(), batch_sampler=sampler, collate_fn=list):
            alive.append(sum(reference() is not None for reference in watched))
            del batch
            alive.append(sum(reference() is not None for reference in watched))
        return alive

    kind, alive = same_with_us(counts)
    assert kind == "returned"
    assert alive[1] < alive[0]
