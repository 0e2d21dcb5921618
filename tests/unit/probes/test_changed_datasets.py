"""What training changes in a dataset between passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.session import Recorder
from torch.utils.data import DataLoader, Subset

from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic


class Curriculum:
    def __init__(self) -> None:
        self.level = 0
        self.name = "easy"
        self.made = 0
        self.rate = float("nan")
        self.held: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.made += 1
        self.held = self.held or [index]
        return self.level


def set_level(dataset: Curriculum, epoch: int) -> None:
    dataset.level = epoch


def rename(dataset: Curriculum, epoch: int) -> None:
    dataset.name = ("easy", "hard", "easy")[epoch]
    dataset.level = epoch // 2


def nothing(dataset: Curriculum, epoch: int) -> None:
    dataset.level = 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [(set_level, ["level"]), (rename, ["name", "level"]), (nothing, [])],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda data: DataLoader(data, 2),
        lambda data: DataLoader(Subset(data, [0, 1]), 2),
        lambda data: DataLoader(data, 2, num_workers=1),
        lambda data: DataLoader(data, 2, num_workers=1, persistent_workers=True),
    ],
)
def test_what_training_changes_between_passes(
    make: Callable[[Any], Any],
    change: Callable[[Curriculum, int], None],
    expected: list[str],
    recorder: Recorder,
) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = make(dataset)
    for epoch in range(3):
        change(dataset, epoch)
        assert len(list(loader)) > 0
    del loader
    assert changed(recorder) == expected


def test_what_the_dataset_changes_itself_is_not_meant(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = DataLoader(dataset, 2)
    for _ in range(2):
        list(loader)
    assert dataset.made == 8
    assert changed(recorder) == []


def test_a_pass_that_is_broken_off_tells_nothing(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = DataLoader(dataset, 2)
    next(iter(loader))
    dataset.level = 1
    list(loader)
    assert changed(recorder) == []


def changed(recorder: Recorder) -> list[str]:
    told = [note.get("changed_dataset") for note in recorder.read().notes(Topic.ENVIRONMENT)]
    return [one["attribute"] for one in told if one]
