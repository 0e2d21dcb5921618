"""What is noted of a loader, its dataset and its sampler."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.loaders import Numbers, Stream
from support.session import Recorder
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
)

from trainprof.inside.loading.loader_metadata import is_stackable, refuses_lists
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Topic

TENSORS = TensorDataset(torch.zeros(8, 2))
PAIRS = [(torch.zeros(2), 1), (torch.ones(2), 0)]
OF_TENSORS = "TensorDataset.__getitem__"
ONE, FEW = ConcatDataset([TENSORS]), Subset(TENSORS, [1])


class Own(DataLoader[Any]):
    pass


class OwnTensors(TensorDataset):
    def __len__(self) -> int:
        return 2


class Sized(Stream):
    def __len__(self) -> int:
        return 5


class Rows(Numbers):
    """Takes a list of indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class OfRanks(Stream):
    num_shards = 1


class HuggingFaces(OfRanks):
    """A stand-in for their stream, by its class's module."""


HuggingFaces.__module__ = "datasets.iterable_dataset"


class Augmented(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)


def seed_worker(worker_id: int) -> None:
    """PyTorch's recipe."""
    np.random.seed(PAIRS[0][1] + torch.initial_seed() % 2**32)


def give_share(worker_id: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.first = worker_id


def give_share_elsewhere(worker_id: int) -> None:
    give_share(worker_id)


def asked(by_one: bool, holds_tensors: bool) -> dict[str, bool]:
    return {"is_asked_one_by_one": by_one, "holds_tensors": holds_tensors}


def made_by(name: str, own: bool) -> dict[str, Any]:
    kinds = {kind.__name__: kind for kind in (Rows, Stream, TensorDataset, ConcatDataset)}
    module = kinds[name.partition(".")[0]].__module__
    return {"dataset_function": f"{module}:{name}", "runs_own_code": own}


def length(samples: int, batches: int) -> dict[str, int]:
    return {"dataset_length": samples, "length": batches}


def drawn_by(sampler: Any, **options: Any) -> Any:
    return DataLoader(TENSORS, 2, sampler=sampler, **options)


def drawn(plainly: bool, by_generator: bool) -> dict[str, bool]:
    return {"samples_plainly": plainly, "samples_by_generator": by_generator}


def generator() -> torch.Generator:
    return torch.Generator()


def shared_generator() -> Any:
    shared = generator()
    return drawn_by(RandomSampler(TENSORS, generator=shared), generator=shared)


class Balanced(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


def of_package(module: str, name: str, base: type) -> Any:
    """Returns a class as an installed package has it."""
    return type(name, (base,), {"__module__": module})


Seeded = of_package("planted.sampler", "RandomSampler", RandomSampler)
Stateful = of_package("planted.loader", "StatefulDataLoader", DataLoader)

METADATA: list[tuple[Callable[[], DataLoader[Any]], dict[str, Any]]] = [
    (
        lambda: Own(Numbers(), 3, num_workers=1, persistent_workers=True, drop_last=True),
        {
            **length(6, 2),
            "kind": "Own",
            "dataset": "Numbers",
            "sampler": "SequentialSampler",
            "batch_size": 3,
            "drop_last": True,
            "pin_memory": False,
            "is_iterable": False,
            "num_workers": 1,
            "prefetch_factor": 2,
            "persistent_workers": True,
            "start_method": "fork",
            "workers_started_by": "fork",
            "unpicklable": [],
        },
    ),
    # Streams.
    (lambda: DataLoader(Sized(), 2), length(5, 3)),
    (lambda: DataLoader(Sized(), 2, drop_last=True), length(5, 2)),
    (lambda: DataLoader(Stream()), {"is_own_stream": True, "is_iterable": True}),
    (lambda: DataLoader(Numbers()), {"is_own_stream": False, "generators": [], "shards": None}),
    (lambda: DataLoader(ChainDataset([Stream()])), {"is_own_stream": False}),  # torch's own
    (lambda: DataLoader(HuggingFaces()), {"shards": 1}),
    (lambda: DataLoader(OfRanks()), {"shards": None}),
    # How a dataset is asked for a batch.
    (lambda: DataLoader(Subset(FEW, range(1)), 2), asked(True, True)),
    (lambda: DataLoader(Numbers(6), 2, shuffle=True), asked(True, False)),
    (lambda: DataLoader(Subset([(1, 2)], [0]), 2), {"refuses_lists": True, "is_stackable": True}),
    (lambda: DataLoader(Rows(6), 2), asked(False, False)),
    (lambda: DataLoader(Stream(), 2), asked(False, False)),
    (lambda: DataLoader(TENSORS, 2, collate_fn=list), asked(False, True)),
    # Whose code makes its samples.
    (lambda: DataLoader(Rows(6), 2), made_by("Rows.__getitems__", True)),
    (lambda: DataLoader(Sized(), 2), made_by("Stream.__iter__", True)),
    (lambda: DataLoader(Subset(OwnTensors(TENSORS[0][0]), [1])), made_by(OF_TENSORS, False)),
    (lambda: DataLoader(ConcatDataset([Numbers()]), 2), made_by("ConcatDataset.__getitem__", True)),
    (lambda: DataLoader(PAIRS, 2), {"dataset_function": None, "runs_own_code": False}),
    # What its workers get: generators alike, or a share each.
    (lambda: DataLoader(Augmented()), {"generators": ["rng"], "set_up_as_workers_start": False}),
    (
        lambda: DataLoader(Augmented(), worker_init_fn=seed_worker),
        {"generators": ["rng"], "set_up_as_workers_start": False},
    ),
    (
        lambda: DataLoader(Augmented(), worker_init_fn=give_share),  # it may seed that
        {"generators": [], "set_up_as_workers_start": True},
    ),
    (
        lambda: DataLoader(Numbers(), worker_init_fn=give_share_elsewhere),
        {"set_up_as_workers_start": None},
    ),
    # How a sampler draws, and who may have made it.
    (lambda: DataLoader(TENSORS, 2, shuffle=True), drawn(True, False) | {"sampler_from": "torch"}),
    (lambda: drawn_by(RandomSampler(TENSORS)), drawn(True, False) | {"sampler_takes_epoch": False}),
    (lambda: DataLoader(TENSORS, 2, shuffle=True, generator=generator()), drawn(False, True)),
    (shared_generator, drawn(False, True)),
    (lambda: drawn_by(RandomSampler(TENSORS, generator=generator())), drawn(False, False)),
    (lambda: drawn_by(RandomSampler(TENSORS, num_samples=4)), drawn(False, False)),
    (lambda: drawn_by(RandomSampler(TENSORS, replacement=True)), drawn(False, False)),
    (lambda: drawn_by(Balanced()), {"sampler_from": "other"}),
    (lambda: drawn_by(Seeded(TENSORS)), {"sampler_from": "other"}),
    (lambda: Stateful(TENSORS, 2, sampler=Seeded(TENSORS)), {"sampler_from": "loader"}),
    (lambda: Stateful(TENSORS, 2), {"sampler_from": "torch"}),
    (lambda: Own(TENSORS, 2, sampler=Balanced()), {"sampler_from": "loader"}),
    (lambda: drawn_by(DistributedSampler(TENSORS, 2, 0)), {"sampler_takes_epoch": True}),
]


@pytest.mark.parametrize(("make", "expected"), METADATA)
def test_what_is_noted_of_a_loader(
    recorder: Recorder, make: Callable[[], DataLoader[Any]], expected: dict[str, Any]
) -> None:
    recorder.start(LoaderProbe())
    next(iter(make()))
    [metadata] = recorder.read().notes(Topic.LOADER)
    assert {key: metadata[key] for key in expected} == expected


class Archive(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        np.savez(folder / "a.npz", x=np.zeros(3))
        self.packed = np.load(folder / "a.npz")
        self.raw = (folder / "a.npz").open("rb")
        self.mapped = np.memmap(folder / "a.npz", dtype="uint8", mode="r")
        self.database = sqlite3.connect(":memory:")


def test_what_a_dataset_holds_open(recorder: Recorder, tmp_path: Path) -> None:
    recorder.start(LoaderProbe())
    archive = Archive(tmp_path)
    next(iter(DataLoader(Subset(archive, range(4)))))
    [metadata] = recorder.read().notes(Topic.LOADER)
    archive.raw.close()
    assert metadata["open_files"] == [
        "packed (NpzFile)",
        "raw (BufferedReader)",
        "database (Connection)",
    ]


class Unasked(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("asked for a sample")

    def __len__(self) -> int:
        return 4


class Listed(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return [list.__getitem__(self, number) for number in index]


@pytest.mark.parametrize(
    ("datasets", "refuses", "stackable"),
    [
        ([PAIRS, tuple(PAIRS), deque(PAIRS), [[np.zeros(2), np.float32(1)]]], True, True),
        ([ConcatDataset([FEW, PAIRS]), ConcatDataset([ONE, TENSORS])], True, True),
        ([{0: PAIRS[0], 1: 2}, range(4), [], [1, 2], [torch.zeros(2)]], True, False),
        ([[{"x": 1}], [("a.png", 1)], [()]], True, False),
        ([ConcatDataset([TENSORS, Unasked()]), ConcatDataset([TENSORS] * 65)], True, False),
        ([TENSORS, Listed(PAIRS), torch.zeros(4), np.zeros(4)], False, False),
        ([StackDataset(TENSORS), Unasked()], None, False),  # not known of the user's own methods
    ],
)
def test_what_refuses_lists_or_stacks(
    datasets: list[Any], refuses: bool | None, stackable: bool
) -> None:
    assert [is_stackable(dataset) for dataset in datasets] == [stackable] * len(datasets)
    assert [refuses_lists(dataset) for dataset in datasets] == [bool(refuses)] * len(datasets)
    for dataset in datasets if refuses is not None else ():
        with pytest.raises((TypeError, KeyError)) if refuses else nullcontext():
            dataset[[0, 1]]
