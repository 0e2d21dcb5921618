"""Which loaders load the same data: datasets are told apart by numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.loaders import Numbers
from support.session import Recorder
from torch.utils.data import DataLoader, Subset

from trainprof.inside.loading.dataset_tracking import MOST_FINGERPRINTS, DatasetNumbers
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic


class Table(Numbers):
    """Hugging Face's gives out a copy of itself without the columns that a model does not take."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__()
        self._fingerprint = fingerprint


SAME = Numbers()


@pytest.mark.parametrize(
    ("datasets", "numbers"),
    [
        ([SAME, SAME, Numbers()], [1, 1, 2]),
        ([Table("a"), Table("b"), Table("a")], [1, 2, 1]),  # copies with one fingerprint
        ([[1, 2], [3, 4]], [None, None]),  # which cannot be watched
    ],
)
def test_datasets_of_a_line(
    recorder: Recorder, datasets: list[Any], numbers: list[int | None]
) -> None:
    recorder.start(LoaderProbe())
    loaders = [DataLoader(dataset) for dataset in datasets]
    for loader in loaders:
        next(iter(loader))
    assert [note["dataset_number"] for note in recorder.read().notes(Topic.LOADER)] == numbers


def run_numbers(recorder: Recorder, make: Callable[[int], Any]) -> list[int]:
    """Returns the numbers, over the whole run, of what a line loads in each of four epochs."""
    recorder.start(LoaderProbe())
    for epoch in range(4):
        for _ in DataLoader(make(epoch)):
            pass
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return [event.value for event in recording.of(Kind.LOADER_BUILT)]


def numbers_again(epoch: int) -> Numbers:
    return Numbers()


KEPT: list[list[int]] = []


def new_list(epoch: int) -> list[int]:
    KEPT[:] = [*KEPT[-1:], [epoch] * 3]  # the last one lives until the next is there
    return KEPT[-1]


@pytest.mark.parametrize(
    "make",
    [
        numbers_again,
        lambda epoch: Subset(Numbers(), [epoch]),
        lambda epoch: Table(f"{epoch}"),
        lambda epoch: torch.full((3,), epoch),
        new_list,
    ],
)
def test_a_dataset_rebuilt_each_epoch_is_another(
    make: Callable[[int], Any], recorder: Recorder
) -> None:
    assert run_numbers(recorder, make) == [1, 2, 3, 4]
    loaders = len(recorder.read().notes(Topic.LOADER))
    assert loaders == 1 or make is not numbers_again


@pytest.mark.parametrize("same", [Numbers(), [1, 2, 3], range(3), torch.arange(3), None])
def test_a_dataset_that_stays_keeps_its_number(same: Any, recorder: Recorder) -> None:
    make = (lambda _: Table("a")) if same is None else lambda _: same
    assert run_numbers(recorder, make) == [1] * 4


class Tracker:
    def __init__(self) -> None:
        self.references: list[Any] = []

    def __call__(self, thing: object, table: dict[Any, Any], key: object) -> bool:
        self.references.append(weakref.ref(thing, partial(table.pop, key)))
        return True


def test_rows_selected_for_each_task_take_numbers_that_are_free_again() -> None:
    """Of a line the last fingerprints keep theirs, and all of datasets that live."""
    numbers = DatasetNumbers(Tracker())
    living = [Table(str(n)) for n in range(5 * MOST_FINGERPRINTS)]
    for _ in range(2):
        given = [numbers.line_number(1, table) for table in living]
        assert given == list(range(1, len(living) + 1))
    for _ in range(2):
        folds = [numbers.line_number(2, Table(f"fold {n}")) for n in range(MOST_FINGERPRINTS)]
        assert folds == list(range(1, MOST_FINGERPRINTS + 1))
    later = [numbers.line_number(1, Table(f"task {n}")) for n in range(20 * MOST_FINGERPRINTS)]
    assert not {*later} & {*given}
    assert max(number for number in later if number) <= 2 * len(living)
