"""Which loaders of one line load the same data, draw by one sampler, and collate alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Table(Numbers):
    """Hugging Face's gives out a copy of itself without the columns that a model does not take."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint


def _dataset_numbers(recorder: Recorder, datasets: list[Any]) -> list[int | None]:
    recorder.start(LoaderProbe())
    loaders = [DataLoader(dataset) for dataset in datasets]
    for loader in loaders:
        next(iter(loader))
    return [facts["dataset_number"] for facts in recorder.read().notes(Topic.LOADER)]


def test_loaders_of_one_dataset_say_so(recorder: Recorder) -> None:
    same = Numbers()
    assert _dataset_numbers(recorder, [same, same, Numbers()]) == [1, 1, 2]


def test_copies_with_one_fingerprint_are_one_dataset(recorder: Recorder) -> None:
    assert _dataset_numbers(recorder, [Table("a"), Table("b"), Table("a")]) == [1, 2, 1]


def test_what_cannot_be_watched_has_no_number(recorder: Recorder) -> None:
    assert _dataset_numbers(recorder, [[1, 2], [3, 4]]) == [None, None]


def test_a_dataset_made_anew_each_epoch_is_the_same(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    for _ in range(3):
        for _ in DataLoader(Numbers()):
            pass
    assert len(recorder.read().notes(Topic.LOADER)) == 1


def _numbers_of_built(recorder: Recorder, make: Callable[[int], Any]) -> list[int]:
    recorder.start(LoaderProbe())
    for epoch in range(4):
        for _ in DataLoader(make(epoch)):
            pass
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return [event.value for event in recording.of(Kind.LOADER_BUILT)]


@pytest.mark.parametrize(
    "make",
    [
        lambda epoch: Numbers(),
        lambda epoch: Subset(Numbers(), [epoch]),
        lambda epoch: Table(f"{epoch}"),
        lambda epoch: torch.full((3,), epoch),
    ],
)
def test_a_dataset_made_anew_each_epoch_has_another_number(
    make: Callable[[int], Any], recorder: Recorder
) -> None:
    assert _numbers_of_built(recorder, make) == [1, 2, 3, 4]


def test_a_list_made_anew_each_epoch_has_another_number(recorder: Recorder) -> None:
    kept: list[list[int]] = []

    def make(epoch: int) -> list[int]:
        kept[:] = [*kept[-1:], [epoch] * 3]  # the last one lives until the next is there
        return kept[-1]

    assert _numbers_of_built(recorder, make) == [1, 2, 3, 4]


@pytest.mark.parametrize("same", [Numbers(), [1, 2, 3], range(3), torch.arange(3)])
def test_one_dataset_has_one_number(same: Any, recorder: Recorder) -> None:
    assert _numbers_of_built(recorder, lambda epoch: same) == [1] * 4


def test_copies_with_one_fingerprint_have_one_number(recorder: Recorder) -> None:
    assert _numbers_of_built(recorder, lambda epoch: Table("a")) == [1] * 4


def test_lists_of_other_loaders_are_told_apart(recorder: Recorder) -> None:
    one, other = [1, 2, 3], [1, 2]
    found = _numbers_of_built(recorder, lambda epoch: other if epoch % 2 else one)
    assert found[::2] == found[:1] * 2
    assert found[1::2] == found[1:2] * 2
    assert found[0] != found[1]


def _numbers_of(recorder: Recorder, kind: Kind, make: Callable[[int], Any]) -> list[int]:
    recorder.start(LoaderProbe())
    for epoch in range(4):
        for _ in make(epoch):
            pass
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return [event.value for event in recording.of(kind)]


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


HELD = SubsetRandomSampler([1, 2])


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda epoch: {}, []),
        (lambda epoch: {"shuffle": True}, []),
        (lambda epoch: {"sampler": RandomSampler(Numbers())}, []),
        (lambda epoch: {"sampler": SubsetRandomSampler([epoch])}, [1, 2, 3, 4]),
        (lambda epoch: {"sampler": WeightedRandomSampler([1.0] * 6, 6)}, [1, 2, 3, 4]),
        (lambda epoch: {"sampler": Own()}, [1, 2, 3, 4]),
        (lambda epoch: {"sampler": HELD}, [1, 1, 1, 1]),
        (lambda epoch: {"batch_sampler": BatchSampler(Own(), 2, False)}, [1, 2, 3, 4]),
        (lambda epoch: {"batch_sampler": BatchSampler(HELD, 2, False)}, [1, 1, 1, 1]),
    ],
)
def test_samplers_made_anew_have_other_numbers(
    make: Callable[[int], dict[str, Any]], numbers: list[int], recorder: Recorder
) -> None:
    def loader(epoch: int) -> Any:
        return DataLoader(Numbers(), **make(epoch))

    assert _numbers_of(recorder, Kind.LOADER_SAMPLER, loader) == numbers


def collate(samples: Any, longest: int = 8, held: Any = None) -> Any:
    return samples[:longest]


class Collator:
    def __init__(self, longest: int) -> None:
        self.longest = longest

    def __call__(self, samples: Any) -> Any:
        return samples[: self.longest]

    def method(self, samples: Any) -> Any:
        return self(samples)


def closing_over(longest: int) -> Callable[[Any], Any]:
    return lambda samples: samples[:longest]


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda epoch: default_collate, []),
        (lambda epoch: collate, [1, 1, 1, 1]),
        (lambda epoch: lambda samples: samples, [1, 1, 1, 1]),
        (lambda epoch: partial(collate, longest=8), [1, 1, 1, 1]),
        (lambda epoch: partial(collate, longest=epoch), [1, 2, 3, 4]),
        (lambda epoch: Collator(8), [1, 1, 1, 1]),
        (lambda epoch: Collator(8).method, [1, 1, 1, 1]),
        (lambda epoch: Collator(epoch), [1, 2, 3, 4]),
        (lambda epoch: Collator(epoch).method, [1, 2, 3, 4]),
        (lambda epoch: closing_over(8), [1, 1, 1, 1]),
        (lambda epoch: closing_over(epoch % 2), [1, 2, 1, 2]),
    ],
)
def test_collate_functions_that_do_otherwise_have_other_numbers(
    make: Callable[[int], Any], numbers: list[int], recorder: Recorder
) -> None:
    def loader(epoch: int) -> Any:
        return DataLoader(Numbers(), collate_fn=make(epoch))

    assert _numbers_of(recorder, Kind.LOADER_COLLATE, loader) == numbers
