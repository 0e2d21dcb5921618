"""What workers could not share, and what could not be sent to them."""

from __future__ import annotations

import functools
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainprof.inside.loading.worker_requirements import (
    generators,
    open_files,
    python_objects,
    unpicklable,
)


def at_the_top(batch: Any) -> Any:
    return batch


class Transform:
    def __init__(self, how: Any) -> None:
        self.how = how

    def __call__(self, sample: Any) -> Any:
        return self.how(sample)


class Knowing(Transform):
    """Leaves out what cannot be pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Reader:
    def __init__(self, held: Any) -> None:
        self.held = held


def loader(**options: Any) -> Any:
    usual = {"dataset": [1, 2], "collate_fn": at_the_top, "worker_init_fn": None}
    return SimpleNamespace(**(usual | options))


@pytest.mark.parametrize(
    ("held", "named"),
    [
        ([{"x": 1}] * 10_000, ["held (list of 10,000)"]),
        (dict.fromkeys(range(20000), ""), ["held (dict of 20,000)"]),
        (Reader(tuple(range(10_000))), ["held.held (tuple of 10,000)"]),
        ([0] * 9_999, []),
        (np.zeros(20_000), []),
        ("x" * 20_000, []),
    ],
)
def test_what_holds_many_python_objects(held: Any, named: list[str]) -> None:
    assert python_objects(Reader(held)) == named
    assert python_objects([[1]] * 10_000) == ["(list of 10,000)"]


def made_here() -> Any:
    class Local:
        pass

    def function() -> None:
        pass

    return Local, Local(), function


UNPICKLABLE = [
    (lambda: Reader(Transform(at_the_top)), []),
    (lambda: Reader(functools.partial(at_the_top, 3)), []),
    (lambda: Reader([1, "two", {"three": 3.0}]), []),
    (lambda: Reader(Knowing(lambda x: x)), []),
    (lambda: Reader(Transform(lambda x: x)), ["dataset.held.how (a lambda)"]),
    (lambda: Reader([at_the_top, lambda x: x]), ["dataset.held[1] (a lambda)"]),
    (lambda: Reader(functools.partial(lambda x: x)), ["dataset.held (a lambda)"]),
    (lambda: Reader(made_here()[0]), ["dataset.held (a local class)"]),
    (lambda: made_here()[1], ["dataset (a local class)"]),
    (lambda: Reader(made_here()[2]), ["dataset.held (a local function)"]),
    (lambda: Reader(threading.Lock()), ["dataset.held (a lock)"]),
    (lambda: Reader(x for x in ()), ["dataset.held (a generator)"]),
    (lambda: Reader(pickle), ["dataset.held (a module)"]),
]


@pytest.mark.parametrize(("make", "expected"), UNPICKLABLE)
def test_what_cannot_be_sent_to_a_worker(make: Callable[[], Any], expected: list[str]) -> None:
    dataset = make()
    assert unpicklable(loader(dataset=dataset)) == expected
    if expected:
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.dumps(dataset)
    else:
        pickle.dumps(dataset)


def test_functions_of_the_loader_are_sent_too() -> None:
    assert unpicklable(loader(collate_fn=lambda x: x)) == ["collate_fn (a lambda)"]
    init = functools.partial(made_here()[2], 1)
    [named] = unpicklable(loader(worker_init_fn=init))
    assert named == "worker_init_fn (a local function)"


class Touchy:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


def test_objects_are_not_asked_for_anything_and_those_within_themselves_once() -> None:
    dataset = Reader(None)
    dataset.held = [dataset, Touchy(), lambda x: x]
    assert unpicklable(loader(dataset=dataset)) == ["dataset.held[2] (a lambda)"]
    assert open_files(Reader([Touchy()])) == []


def test_open_files_are_found_where_a_dataset_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with (tmp_path / "a").open("rb") as file:
        assert open_files(Reader(file)) == ["held (BufferedReader)"]
        assert open_files(Reader([3, file])) == ["held[1] (BufferedReader)"]
        assert open_files(Reader({"shard": file})) == ["held[0] (BufferedReader)"]
        assert open_files(Reader(Reader(file))) == ["held.held (BufferedReader)"]
        assert open_files(Reader(file.name)) == []
    with (tmp_path / "log").open("w") as log, (tmp_path / "a").open() as text:
        assert open_files(Reader(log)) == []
        assert open_files(Reader(text)) == ["held (TextIOWrapper)"]
    assert open_files(Reader(at_the_top)) == []
    assert open_files([1, 2]) == []


@pytest.mark.parametrize(
    ("module", "name", "is_open"),
    [
        ("cv2", "VideoCapture", True),
        ("decord.video_reader", "VideoReader", True),
        ("netCDF4._netCDF4", "Variable", True),
        ("psycopg2.extensions", "cursor", True),
        ("cv2", "CascadeClassifier", False),
        ("av.container.output", "OutputContainer", False),  # written, by nobody who makes batches
        ("videos", "VideoReader", False),  # the user's own
        ("av_reader", "InputContainer", False),
    ],
)
def test_handles_of_libraries_by_class(module: str, name: str, is_open: bool) -> None:
    handle = type(name, (), {"__module__": module})()
    assert open_files(Reader(handle)) == [f"held ({name})"] * is_open
    unsent = [f"dataset.held (an open {name})"] * is_open
    assert unpicklable(loader(dataset=Reader(handle))) == unsent


def is_own(kind: type) -> bool:
    return kind.__module__ == __name__


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(0),
        lambda: np.random.RandomState(0),
        lambda: random.Random(0),
        torch.Generator,
    ],
)
def test_random_generators_are_found_in_objects_of_the_users(make: Callable[[], Any]) -> None:
    assert generators(Reader(make()), is_own) == ["held"]
    assert generators(Reader([3, Transform(make())]), is_own) == ["held[1].how"]
    # Those of a library's own objects: it knows about workers.
    assert generators(SimpleNamespace(held=make()), is_own) == []
    assert generators(Reader(SimpleNamespace(rng=make())), is_own) == []
    assert generators(Reader([np.zeros(3), Touchy()]), is_own) == []
