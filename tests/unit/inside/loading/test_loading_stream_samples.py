"""What workers record of the first samples that they yield."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.loaders import loader_probes
from support.session import Recorder
from torch.utils.data import DataLoader, IterableDataset

from trainprof.inside.spans.fetch import FetchProbe
from trainprof.record.schema import Topic


class Samples(IterableDataset[Any]):
    """Yields a tensor, an array, a number and text for each record."""

    def __init__(self, shares: bool = False) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info() if self.shares else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 40, step):
            yield {"x": torch.full((4,), i), "y": (np.arange(i, i + 3), i, str(i))}


class Thing:
    pass


class Things(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([Thing() for _ in range(40)])


def first(batch: list[Any]) -> int:
    return len(batch)


def recorded(recorder: Recorder, dataset: Any, workers: int, **options: Any) -> list[Any]:
    """Returns the notes of each process."""
    recorder.start(*loader_probes(FetchProbe))
    list(DataLoader(dataset, num_workers=workers, collate_fn=first, **options))
    return [recording.notes(Topic.ENVIRONMENT) for recording in recorder.read_all()]


def streams(notes: list[Any]) -> list[Any]:
    return [x["first_samples"] for process in notes for x in process if "first_samples" in x]


@pytest.mark.parametrize(("shares", "different"), [(False, 1), (True, 2)])
def test_first_samples_of_workers(recorder: Recorder, shares: bool, different: int) -> None:
    notes = recorded(recorder, Samples(shares), 2, batch_size=5)
    first_samples = streams(notes)
    assert [len(x["checksums"]) for x in first_samples] == [8, 8]
    assert len({x["base_seed"] for x in first_samples}) == 1
    assert len({tuple(x["checksums"]) for x in first_samples}) == different
    assert all(len(set(x["checksums"])) == 8 for x in first_samples)
    asked = sum(any("asked_for_worker" in x for x in process) for process in notes)
    assert asked == (2 if shares else 0)


@pytest.mark.parametrize(("dataset", "workers"), [(Things(), 2), (Samples(), 1), (Samples(), 0)])
def test_samples_that_are_not_compared(recorder: Recorder, dataset: Any, workers: int) -> None:
    assert streams(recorded(recorder, dataset, workers, batch_size=5)) == []


def test_who_asks_for_the_worker(recorder: Recorder) -> None:
    recorder.start(*loader_probes(FetchProbe))
    assert torch.utils.data.get_worker_info() is None
    assert torch.utils.data.get_worker_info() is None
    asked = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "asked_for_worker" in x]
    assert len(asked) == 1
