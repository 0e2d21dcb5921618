"""Lengths are told where nobody notices that they are asked for, and nowhere else."""

from __future__ import annotations

import math
import types
import weakref
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from trainprof.inside.loading.known_length import known_length

ASKED: list[object] = []


class Holding(Dataset[Any]):
    """What datasets of the script's usually hold, and say."""

    def __init__(self) -> None:
        self.items, self.count, self.stride = list(range(10)), np.int64(7), 4
        self.table = {"x": np.zeros((6, 2)), "y": deque([1, 2, 3])}
        self.x = torch.zeros(5, 2)
        self.inner = types.SimpleNamespace(rows=range(8))

    def __getitem__(self, index: int) -> int:
        return index


def sized(length: Any, **more: Any) -> type[Holding]:
    """Returns a class of the script's with a `__len__`."""
    return type("Sized", (Holding,), {"__len__": length, **more})


class Items(Holding):
    def __len__(self) -> int:
        """How many."""
        return len(self.items)


class Around(Holding):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.other = inner

    def __len__(self) -> int:
        return len(self.other)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Items, 10),
        (sized(lambda self: self.count), 7),
        (sized(lambda self: 1000), 1000),
        (sized(lambda self: max(0, (len(self.items) - self.stride) // 2)), 3),
        (sized(lambda self: math.ceil(len(self.items) / self.stride)), 3),
        (sized(lambda self: len(self.inner.rows)), 8),
        (sized(lambda self: self.x.shape[0]), 5),
        (sized(lambda self: len(self.x)), 5),
        (sized(lambda self: len(self.table["x"])), 6),
    ],
)
def test_what_only_counts_is_asked(kind: type[Holding], expected: int) -> None:
    dataset: Any = kind()
    assert known_length(dataset) == expected == len(dataset)
    assert known_length(Around(dataset)) == expected
    assert known_length(DataLoader(dataset, 2, shuffle=True)) == math.ceil(expected / 2)


def noticed(self: object, *_: object) -> Any:
    """Stands for code of the script's that would notice that it is asked."""
    ASKED.append(self)
    return 4


class Computed(Holding):
    def __getattribute__(self, name: str) -> Any:
        if name == "items":
            ASKED.append(self)
        return super().__getattribute__(name)

    def __len__(self) -> int:
        return len(self.items)


Asked = sized(noticed)
Drawing = sized(lambda self: 2 + self.draw(), draw=noticed)
Property = sized(lambda self: len(self.items_now), items_now=property(noticed))
Missing = sized(lambda self: len(self.nowhere), __getattr__=noticed)
Looping = sized(lambda self: sum(1 for _ in self.draw()), draw=noticed)
KEPT = Asked()


def sampled(sampler: Any) -> DataLoader[Any]:
    return DataLoader(Items(), sampler=sampler)


@pytest.mark.parametrize(
    "make",
    [
        Asked,
        Drawing,
        Property,
        Computed,
        Missing,
        Looping,
        lambda: Around(Asked()),
        lambda: DataLoader(Asked(), 2),
        lambda: DataLoader(Drawing(), 2, shuffle=True),
        lambda: sampled(SequentialSampler(Asked())),
        lambda: sampled(type("Own", (RandomSampler,), {"num_samples": property(noticed)})(Items())),
        lambda: DataLoader(
            Items(), batch_sampler=type("Own", (BatchSampler,), {"__len__": noticed})([1], 2, False)
        ),
        lambda: type("Own", (DataLoader,), {"_index_sampler": property(noticed)})(Items()),
        lambda: weakref.proxy(KEPT),
    ],
)
def test_what_might_be_noticed_is_not_asked(make: Any) -> None:
    thing = make()
    ASKED.clear()
    assert known_length(thing) is None
    assert ASKED == []


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        ([1, 2], 2),
        (range(3), 3),
        (np.zeros((4, 1)), 4),
        (np.zeros(()), None),
        (torch.zeros(5), 5),
        (torch.nn.Parameter(torch.zeros(6)), 6),
        (torch.zeros(()), None),
        (3, None),
        (None, None),
        (iter([1]), None),
        (TensorDataset(torch.zeros(4)), 4),
        (Subset(Asked(), [1, 2]), 2),
        (ConcatDataset([Items(), Items()]), 20),
        (DataLoader(TensorDataset(torch.zeros(5)), 2, drop_last=True), 2),
        (sampled(SubsetRandomSampler([1, 2, 3])), 3),
        (sampled(DistributedSampler(Items(), num_replicas=2, rank=0)), 5),
        (sampled(RandomSampler(Items(), num_samples=4)), 4),
        (DataLoader(Items(), batch_sampler=[[1], [2, 3]]), 2),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_torchs_or_pythons_is_asked(thing: Any, expected: int | None) -> None:
    ASKED.clear()
    assert known_length(thing) == expected
    assert ASKED == []


@pytest.mark.frameworks("accelerate", "torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_samplers_and_loaders_of_packages_are_torchs_with_another_order() -> None:
    from accelerate.data_loader import SeedableRandomSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    assert known_length(SeedableRandomSampler(Items())) == 10
    assert known_length(SeedableRandomSampler(Asked())) is None
    assert known_length(StatefulDataLoader(Items(), 3, shuffle=True)) == 4
    assert known_length(StatefulDataLoader(Asked(), 3, shuffle=True)) is None


@pytest.mark.frameworks("datasets", "pandas")
def test_tables_of_packages_are_asked() -> None:
    import datasets
    import pandas

    frame = pandas.DataFrame({"x": [1, 2, 3]})
    assert [known_length(table) for table in (frame, frame["x"], Around(frame))] == [3, 3, 3]
    assert known_length(datasets.Dataset.from_dict({"x": [1, 2]})) == 2
