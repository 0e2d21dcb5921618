"""Which loaders of one line load the same data, draw by one sampler, and collate alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
)

from trainprof.inside.spans.loader import LoaderProbe
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
