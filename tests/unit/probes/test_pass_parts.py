"""What training changes between passes beside the dataset itself: functions, and parts of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch.utils.data import DataLoader, Dataset, default_collate

from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic

STRENGTH = 0
UNREAD = 0


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Mask:
    """Masks what it is given; what it is called with is all that it reads its rate for."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.best_loss = 0.0
        self.calls = 0

    def __call__(self, samples: Any) -> Any:
        self.calls += 1
        return default_collate(samples) * (1 - self.share())

    def share(self) -> float:
        return self.rate

    def learn(self) -> float:
        return self.best_loss


class Trainer:
    """Has all of training, and a function that puts samples together."""

    def __init__(self) -> None:
        self.mask = Mask()
        self.epoch = 0
        self.longest = 8

    def collate(self, samples: Any) -> Any:
        return self.mask(samples[: self.longest])


class Transformed(Numbers):
    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.trainer = Trainer()

    def __getitem__(self, index: int) -> Any:
        return self.transform([index])


class Wrapper(Numbers):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def collate_by_global(samples: Any) -> Any:
    return default_collate(samples) * STRENGTH


def seed_by_epoch(worker: int) -> None:
    torch.manual_seed(STRENGTH + worker)


def by_settings(settings: Any) -> Callable[[Any], Any]:
    return lambda samples: default_collate(samples) * settings.rate


def changed(recorder: Recorder) -> list[str]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    told = [note.get("changed_dataset") for note in recording.notes(Topic.ENVIRONMENT)]
    return [one["attribute"] for one in told if one is not None]


def run(recorder: Recorder, loader: Any, change: Callable[[int], None]) -> list[str]:
    recorder.start(LoaderProbe())
    for epoch in range(3):
        change(epoch)
        for _ in loader:
            pass
    del loader
    return changed(recorder)


def sets(thing: Any, name: str) -> Callable[[int], None]:
    return lambda epoch: setattr(thing, name, 0.1 * epoch)


def set_strength(epoch: int) -> None:
    global STRENGTH, UNREAD
    STRENGTH = UNREAD = epoch


def nothing(epoch: int) -> None:
    pass


def of_object(**loading: Any) -> tuple[Any, Any, list[str]]:
    mask = Mask()
    return (
        DataLoader(Numbers(), 2, collate_fn=mask, **loading),
        sets(mask, "rate"),
        ["collate_fn.rate"],
    )


def of_what_it_does_not_read(**loading: Any) -> tuple[Any, Any, list[str]]:
    mask = Mask()
    return DataLoader(Numbers(), 2, collate_fn=mask, **loading), sets(mask, "best_loss"), []


def of_method(**loading: Any) -> tuple[Any, Any, list[str]]:
    trainer = Trainer()
    loader = DataLoader(Numbers(), 2, collate_fn=trainer.collate, **loading)
    return loader, sets(trainer.mask, "rate"), ["collate_fn.mask.rate"]


def of_its_trainer(**loading: Any) -> tuple[Any, Any, list[str]]:
    trainer = Trainer()
    loader = DataLoader(Numbers(), 2, collate_fn=trainer.collate, **loading)
    return loader, sets(trainer, "epoch"), []


def of_partial(**loading: Any) -> tuple[Any, Any, list[str]]:
    mask = Mask()
    collate = partial(lambda held, samples: held(samples), mask)
    return (
        DataLoader(Numbers(), 2, collate_fn=collate, **loading),
        sets(mask, "rate"),
        ["collate_fn[0].rate"],
    )


def of_closure(**loading: Any) -> tuple[Any, Any, list[str]]:
    settings = argparse.Namespace(rate=0.0, lr=0.1)
    loader = DataLoader(Numbers(), 2, collate_fn=by_settings(settings), **loading)

    def change(epoch: int) -> None:
        settings.rate, settings.lr = epoch, 0.1 / (1 + epoch)

    return loader, change, ["collate_fn.settings.rate"]


def of_global(**loading: Any) -> tuple[Any, Any, list[str]]:
    loader = DataLoader(Numbers(), 2, collate_fn=collate_by_global, **loading)
    return loader, set_strength, ["collate_fn.STRENGTH (a variable)"]


def of_transform(**loading: Any) -> tuple[Any, Any, list[str]]:
    mask = Mask()
    loader = DataLoader(Transformed(mask), 2, **loading)
    return loader, sets(mask, "rate"), ["transform.rate"]


def of_composed(**loading: Any) -> tuple[Any, Any, list[str]]:
    mask = Mask()
    data = Wrapper(Transformed(lambda sample: sample))
    data.inner.transform = argparse.Namespace(transforms=[mask])
    data.inner.__class__ = Unasked
    return (
        DataLoader(data, 2, **loading),
        sets(mask, "rate"),
        ["inner.transform.transforms[0].rate"],
    )


class Unasked(Transformed):
    def __getitem__(self, index: int) -> Any:
        for one in self.transform.transforms:
            one([index])
        return index


def of_wrapped(**loading: Any) -> tuple[Any, Any, list[str]]:
    inner = Transformed(Mask())
    loader = DataLoader(Wrapper(inner), 2, **loading)

    def change(epoch: int) -> None:
        inner.transform = Mask()
        inner.trainer.epoch = epoch

    return loader, change, ["inner.transform"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make",
    [
        of_object,
        of_what_it_does_not_read,
        of_method,
        of_its_trainer,
        of_partial,
        of_closure,
        of_global,
        of_transform,
        of_composed,
        of_wrapped,
    ],
)
def test_what_training_changes_beside_the_dataset(
    make: Callable[..., tuple[Any, Any, list[str]]], workers: int, recorder: Recorder
) -> None:
    loader, change, expected = make(num_workers=workers)
    assert run(recorder, loader, change) == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make", [of_object, of_method, of_partial, of_closure, of_global, of_transform, of_wrapped]
)
def test_what_only_the_making_of_batches_changes_is_not_meant(
    make: Callable[..., tuple[Any, Any, list[str]]], workers: int, recorder: Recorder
) -> None:
    assert run(recorder, make(num_workers=workers)[0], nothing) == []


@pytest.mark.parametrize(("workers", "told"), [(0, []), (1, ["STRENGTH (a variable)"])])
def test_workers_are_started_by_what_training_changes(
    workers: int, told: list[str], recorder: Recorder
) -> None:
    loader = DataLoader(Numbers(), 2, num_workers=workers, worker_init_fn=seed_by_epoch)
    assert run(recorder, loader, set_strength) == [f"worker_init_fn.{name}" for name in told]


class Unwilling(dict[str, Any]):
    """Variables of a script that is run by another one."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError


def test_variables_are_looked_up_where_they_are_stored(recorder: Recorder) -> None:
    variables = Unwilling(STRENGTH=1)
    exec("def collate(samples): return [STRENGTH for _ in samples]", variables)
    loader: Any = DataLoader(Numbers(), 2, collate_fn=dict.get(variables, "collate"))
    recorder.start(LoaderProbe())
    assert [*loader] == [[1, 1], [1, 1]]
    assert changed(recorder) == []
