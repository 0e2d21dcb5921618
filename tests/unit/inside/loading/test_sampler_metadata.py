"""How a sampler draws, and who may have made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trainprof.inside.loading.sampler_metadata import sampling

TENSORS = TensorDataset(torch.zeros(8, 2))


def generator() -> torch.Generator:
    return torch.Generator()


def drawn_by(sampler: Any, **options: Any) -> Any:
    return DataLoader(TENSORS, 2, sampler=sampler, **options)


def shared_generator() -> Any:
    one = generator()
    return drawn_by(RandomSampler(TENSORS, generator=one), generator=one)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: DataLoader(TENSORS, 2), (True, False)),
        (lambda: DataLoader(TENSORS, 2, generator=generator()), (True, False)),
        (lambda: DataLoader(TENSORS, 2, shuffle=True), (True, False)),
        (lambda: drawn_by(RandomSampler(TENSORS)), (True, False)),
        (lambda: DataLoader(TENSORS, 2, shuffle=True, generator=generator()), (False, True)),
        (shared_generator, (False, True)),
        (lambda: drawn_by(RandomSampler(TENSORS, generator=generator())), (False, False)),
        (lambda: drawn_by(RandomSampler(TENSORS, num_samples=4)), (False, False)),
        (lambda: drawn_by(RandomSampler(TENSORS, replacement=True)), (False, False)),
    ],
)
def test_of_what_a_sampler_is_made(make: Callable[[], Any], expected: tuple[bool, bool]) -> None:
    facts = sampling(make())
    assert (facts["samples_plainly"], facts["samples_by_generator"]) == expected


class Balanced(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Own(DataLoader[Any]):
    pass


def of_package(module: str, name: str, base: type) -> Any:
    """Returns a class as an installed package has it."""
    return type(name, (base,), {"__module__": module})


Seeded = of_package("planted.sampler", "RandomSampler", RandomSampler)
Stateful = of_package("planted.loader", "StatefulDataLoader", DataLoader)


@pytest.mark.parametrize(
    ("make", "origin"),
    [
        (lambda: DataLoader(TENSORS, 2, shuffle=True), "torch"),
        (lambda: drawn_by(WeightedRandomSampler([1.0, 2.0], 4)), "torch"),
        (lambda: drawn_by(Balanced()), "other"),
        (lambda: drawn_by(range(4)), "other"),
        (lambda: drawn_by(Seeded(TENSORS)), "other"),
        (lambda: Stateful(TENSORS, 2, sampler=Seeded(TENSORS)), "loader"),
        (lambda: Stateful(TENSORS, 2), "torch"),
        (lambda: Own(TENSORS, 2, sampler=Balanced()), "loader"),
        (lambda: object(), None),
    ],
)
def test_whose_class_a_sampler_is_of(make: Callable[[], Any], origin: str | None) -> None:
    assert sampling(make())["sampler_from"] == origin


@pytest.mark.parametrize(
    ("sampler", "takes_epoch"),
    [
        (DistributedSampler(TENSORS, 2, 0), True),
        (RandomSampler(TENSORS), False),
        (SequentialSampler(TENSORS), False),
        ([1, 2], False),
    ],
)
def test_whether_a_sampler_is_told_the_epoch(sampler: Any, takes_epoch: bool) -> None:
    assert sampling(drawn_by(sampler))["sampler_takes_epoch"] is takes_epoch
