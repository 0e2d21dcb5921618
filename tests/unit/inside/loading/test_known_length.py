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
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
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


class Items(Holding):
    def __len__(self) -> int:
        """How many."""
        return len(self.items)


class Count(Holding):
    def __len__(self) -> int:
        return self.count  # type: ignore[return-value]


class Constant(Holding):
    def __len__(self) -> int:
        return 1000


class Windows(Holding):
    def __len__(self) -> int:
        return max(0, (len(self.items) - self.stride) // 2)


class Ceiled(Holding):
    def __len__(self) -> int:
        return math.ceil(len(self.items) / self.stride)


class Inside(Holding):
    def __len__(self) -> int:
        return len(self.inner.rows)


class Shape(Holding):
    def __len__(self) -> int:
        return self.x.shape[0]


class Tensors(Holding):
    def __len__(self) -> int:
        return len(self.x)


class Keyed(Holding):
    def __len__(self) -> int:
        return len(self.table["x"])


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
        (Count, 7),
        (Constant, 1000),
        (Windows, 3),
        (Ceiled, 3),
        (Inside, 8),
        (Shape, 5),
        (Tensors, 5),
        (Keyed, 6),
    ],
)
def test_what_only_counts_is_asked(kind: type[Holding], expected: int) -> None:
    dataset: Any = kind()
    assert known_length(dataset) == expected == len(dataset)
    assert known_length(Around(dataset)) == expected
    assert known_length(DataLoader(dataset, 2, shuffle=True)) == math.ceil(expected / 2)


class Asked(Holding):
    """Somebody would notice that it is asked."""

    def __len__(self) -> int:
        ASKED.append(self)
        return 4


class Drawing(Holding):
    def __len__(self) -> int:
        return 2 + self.draw()

    def draw(self) -> int:
        ASKED.append(self)
        return 1


class Property(Drawing):
    @property
    def items_now(self) -> list[int]:
        self.draw()
        return [1]

    def __len__(self) -> int:
        return len(self.items_now)


class Computed(Drawing):
    def __getattribute__(self, name: str) -> Any:
        if name == "items":
            ASKED.append(self)
        return super().__getattribute__(name)

    def __len__(self) -> int:
        return len(self.items)


class Missing(Drawing):
    def __getattr__(self, name: str) -> Any:
        ASKED.append(self)
        return [1]

    def __len__(self) -> int:
        return len(self.nowhere)


class Remembering(Drawing):
    def __len__(self) -> int:
        self.stride = 5
        return 4


class Looping(Drawing):
    def __len__(self) -> int:
        return sum(1 for _ in self.items)


class OwnSampler(RandomSampler):
    @property
    def num_samples(self) -> int:
        ASKED.append(self)
        return 4


class OwnBatches(BatchSampler):
    def __len__(self) -> int:
        ASKED.append(self)
        return 4


class OwnLoader(DataLoader[Any]):
    @property
    def _index_sampler(self) -> Any:
        ASKED.append(self)
        return self.batch_sampler


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
        lambda: sampled(OwnSampler(Items())),
        lambda: DataLoader(Items(), batch_sampler=OwnBatches(SequentialSampler([1]), 2, False)),
        lambda: OwnLoader(Items()),
        lambda: weakref.proxy(KEPT),
    ],
)
def test_what_might_be_noticed_is_not_asked(make: Any) -> None:
    thing = make()
    ASKED.clear()
    assert known_length(thing) is None
    assert ASKED == []


KEPT = Asked()


def test_a_length_that_is_written_down_is_not_asked() -> None:
    dataset = Remembering()
    assert known_length(dataset) is None
    assert dataset.stride == 4


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
        (StackDataset(Items()), 10),
        (DataLoader(TensorDataset(torch.zeros(5)), 2, drop_last=True), 2),
        (sampled(SubsetRandomSampler([1, 2, 3])), 3),
        (sampled(WeightedRandomSampler([1.0, 1.0], 7)), 7),
        (sampled(DistributedSampler(Items(), num_replicas=2, rank=0)), 5),
        (sampled(RandomSampler(Items(), num_samples=4)), 4),
        (DataLoader(Items(), batch_sampler=[[1], [2, 3]]), 2),
        (DataLoader(Items(), batch_size=None), 10),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_torchs_or_pythons_is_asked(thing: Any, expected: int | None) -> None:
    ASKED.clear()
    assert known_length(thing) == expected
    assert ASKED == []


@pytest.mark.frameworks("accelerate")
def test_samplers_of_packages_are_torchs_with_another_order() -> None:
    from accelerate import data_loader

    assert known_length(data_loader.SeedableRandomSampler(Items())) == 10
    assert known_length(data_loader.SeedableRandomSampler(Asked())) is None


@pytest.mark.frameworks("torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_is_torchs_with_samplers_of_its_own() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    assert known_length(StatefulDataLoader(Items(), 3, shuffle=True)) == 4
    assert known_length(StatefulDataLoader(Asked(), 3, shuffle=True)) is None


@pytest.mark.frameworks("datasets", "pandas")
def test_tables_of_packages_are_asked() -> None:
    import datasets
    import pandas

    frame = pandas.DataFrame({"x": [1, 2, 3]})
    assert [known_length(one) for one in (frame, frame["x"], Around(frame))] == [3, 3, 3]
    assert known_length(datasets.Dataset.from_dict({"x": [1, 2]})) == 2
