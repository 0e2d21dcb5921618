"""Which loaders of one line load the same data."""

from __future__ import annotations

from typing import Any

import torch
from support.session import Recorder
from torch.utils.data import DataLoader, Dataset

from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic


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
