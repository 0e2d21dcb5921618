"""What training changes in a dataset between epochs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.session import Recorder
from torch.utils.data import DataLoader, Subset

from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Topic


class Flip:
    def __init__(self) -> None:
        self.rate = 0.5


class Data:
    def __init__(self) -> None:
        self.level = 0
        self.made = 0
        self.drawn: Any = [0] * 4
        self.rate = float("nan")
        self.cached: dict[int, int] = {}
        self.flip = Flip()
        self.late: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.made += 1
        self.cached[index] = index
        return index


def numbers(epoch: int) -> list[float]:
    return [epoch + index / 10 for index in range(100)]


def fill(name: str, draw: Callable[[int], object]) -> Callable[[Data, int], None]:
    return lambda data, epoch: setattr(data, name, draw(epoch))


def reverse(data: Data, epoch: int) -> None:
    data.drawn.reverse()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (fill("level", int), ["level"]),
        (fill("level", lambda epoch: ("a" * 10_000, "b", "a")[epoch]), ["level"]),
        (fill("drawn", numbers), ["drawn"]),
        (fill("drawn", lambda epoch: dict.fromkeys(numbers(epoch))), ["drawn"]),
        (fill("drawn", lambda epoch: np.array(numbers(epoch))), ["drawn"]),
        (fill("drawn", lambda epoch: torch.tensor(numbers(epoch))), ["drawn"]),
        (reverse, ["drawn"]),
        (lambda data, epoch: setattr(data.flip, "rate", epoch / 10), ["flip.rate"]),
        (fill("level", lambda epoch: 0), []),
        (fill("drawn", lambda epoch: (32 + len(str(epoch)), 32)), []),
        (fill("late", lambda epoch: [1] if epoch else None), []),
        (lambda data, epoch: None, []),
    ],
)
def test_what_training_changes_between_epochs(
    change: Callable[[Data, int], None], expected: list[str], workers: int, recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    for wrap in (lambda data: data, lambda data: Subset(data, [0, 1])):
        data = Data()
        data.drawn = numbers(0) if change is reverse else [0] * 4
        loader: Any = DataLoader(wrap(data), 2, num_workers=workers)
        for epoch in range(3):
            change(data, epoch)
            list(loader)
    assert sorted({*changed(recorder)}) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_off_epoch_counts_with_workers(workers: int, recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    data = Data()
    loader: Any = DataLoader(data, 2, num_workers=workers)
    next(iter(loader))
    data.level = 1
    list(loader)
    assert changed(recorder) == ["level"] * workers


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_set_back", [False, True])
def test_two_loaders_of_one_dataset(workers: int, is_set_back: bool, recorder: Recorder) -> None:
    """What the other one prepares, or is set for it, is no change."""
    recorder.start(LoaderProbe())
    data = Data()
    training: Any = DataLoader(Subset(data, [0, 1]), 2, num_workers=workers)
    evaluating: Any = DataLoader(Subset(data, [2, 3]), 2)
    for _ in range(3):
        for level, loader in enumerate((training, evaluating)):
            data.level = level if is_set_back else 0
            list(loader)
    assert changed(recorder) == []


@pytest.mark.parametrize("is_new", [False, True])
def test_a_loader_that_is_built_again(is_new: bool, recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    data: Any = Data()
    for epoch in range(3):
        data = Data() if is_new else data
        data.level = epoch
        list(DataLoader(data, 2))
    assert changed(recorder) == ([] if is_new else ["level"])


class Weighed(list[float]):
    """What cannot be asked for anything."""

    def forbidden(self, *_: object) -> Any:
        raise AssertionError

    __len__ = __eq__ = __iter__ = __getitem__ = __getattr__ = __bool__ = forbidden
    __hash__ = forbidden


class Kind(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    __hash__ = type.__hash__


class Unlike(metaclass=Kind):
    pass


class Asked(Data):
    """It notes who asks for all that it holds."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            object.__setattr__(self, "is_asked", True)
        return object.__getattribute__(self, name)


def test_nothing_of_the_scripts_is_called_or_kept_alive(recorder: Recorder) -> None:
    probe = LoaderProbe()
    recorder.start(probe)
    data: Any = Asked()
    loader = DataLoader(data, 2, collate_fn=list)
    for _ in range(2):
        data.drawn, data.kind, data.batch = Weighed(), Unlike(), torch.ones(3)
        gone = [weakref.ref(getattr(data, name)) for name in ("drawn", "kind", "batch")]
        assert sum(1 for _ in loader) == 2
        data.drawn = data.kind = data.batch = 0
        assert [reference() for reference in gone] == [None] * 3
    assert not hasattr(data, "is_asked")
    # torch swaps no tensor that somebody refers to, even weakly.
    data.drawn = torch.ones(1)
    list(loader)
    torch.utils.swap_tensors(data.drawn, torch.zeros(1))
    del data, loader
    for _ in range(20):
        list(DataLoader(Data(), 2))
    assert not probe._datasets_between._watched
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def changed(recorder: Recorder) -> list[str]:
    notes = [note.get("changed_dataset") for note in recorder.read().notes(Topic.ENVIRONMENT)]
    return [note["attribute"] for note in notes if note]
