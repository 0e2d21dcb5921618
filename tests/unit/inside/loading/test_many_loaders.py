"""Scripts that build loaders by hundreds: one for each client, task or document."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.session import Recorder
from torch.utils.data import DataLoader, Dataset

from trainprof.inside.loading import loader_description
from trainprof.inside.loading.loader_description import FIRST_LOOKS
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic


class Rows(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Others(Rows):
    pass


class Reading(Rows):
    def __init__(self, length: int, file: Any) -> None:
        super().__init__(length)
        self.file = file


class Drawing(Rows):
    """Goes on with another loader's pass in each sample."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__(2)
        self.iterator = iterator

    def __getitem__(self, index: int) -> int:
        return int(next(self.iterator))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of datasets that were gone through."""
    found: list[int] = []
    plain = loader_description.look_closer

    def look_closer(loader: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        found.append(loader.dataset.length)
        return plain(loader, *arguments, **options)

    monkeypatch.setattr(loader_description, "look_closer", look_closer)
    return found


def first_of(loader: DataLoader[Any]) -> Any:
    return next(iter(loader))


def test_fewer_and_fewer_loaders_of_a_line_are_looked_at_closer(
    recorder: Recorder, looked_at: list[int]
) -> None:
    recorder.start(LoaderProbe())
    for length in range(1, 101):
        first_of(DataLoader(Rows(length)))
    assert FIRST_LOOKS == 8
    assert looked_at == [*range(1, 9), 16, 32, 64]
    facts = recorder.read().notes(Topic.LOADER)
    assert [one["dataset_length"] for one in facts] == list(range(1, 101))
    assert {(*one["open_files"], *one["generators"], *one["unpicklable"]) for one in facts} == {()}


def test_what_differs_from_a_lines_other_loaders_is_looked_at(
    recorder: Recorder, looked_at: list[int]
) -> None:
    def load(dataset: Rows, **options: Any) -> None:
        first_of(DataLoader(dataset, **options))

    recorder.start(LoaderProbe())
    for _ in range(20):
        load(Rows(5))
    looked_at.clear()
    load(Others(6))
    load(Rows(7), num_workers=1)
    load(Rows(8), shuffle=True)
    load(Rows(9), batch_size=3)
    assert looked_at == [6, 7, 8, 9]
    first_of(DataLoader(Rows(10)))
    assert looked_at == [6, 7, 8, 9, 10]


def test_loaders_built_anew_stay_what_they_were(recorder: Recorder, tmp_path: Path) -> None:
    def load(dataset: Rows) -> None:
        first_of(DataLoader(dataset))

    recorder.start(LoaderProbe())
    path = tmp_path / "data"
    path.write_bytes(b"data")
    with path.open("rb") as file:
        datasets = Reading(6, file), Reading(3, None)
        for _ in range(20):
            for dataset in datasets:
                load(dataset)
    recording = recorder.read()
    assert [one["open_files"] for one in recording.notes(Topic.LOADER)] == [
        ["file (BufferedReader)"],
        [],
    ]
    first, second = dict.fromkeys(event.site for event in recording.of(Kind.LOADER_NEXT))
    sites = [event.site for event in recording.of(Kind.LOADER_NEXT)]
    assert sites == [first, second] * 20


def test_later_loaders_of_a_line_have_what_the_last_looked_at_had(recorder: Recorder) -> None:
    class Seeded(Rows):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            empty: Any = io.BytesIO()
            self.draws, self.file = random.Random(0), io.BufferedReader(empty)

    recorder.start(LoaderProbe())
    for length in range(1, 13):
        first_of(DataLoader(Seeded(length)))
    facts = recorder.read().notes(Topic.LOADER)
    assert [one["generators"] for one in facts] == [["draws"]] * 12
    assert [one["open_files"] for one in facts] == [["file (BufferedReader)"]] * 12


def test_what_describing_them_took_is_told_as_our_cost(recorder: Recorder) -> None:
    session = recorder.start(LoaderProbe())
    loader = DataLoader(Rows(2))
    first_of(loader)
    took_ns = session.looked_ns
    assert took_ns > 0
    first_of(loader)
    assert session.looked_ns == took_ns


def test_a_worker_writes_of_all_loaders_its_own_alone(recorder: Recorder) -> None:
    loader = LoaderProbe()
    recorder.start(loader, FetchProbe(loader))
    for length in range(1, 21):
        first_of(DataLoader(Rows(length)))
    assert len(list(DataLoader(Rows(2), num_workers=1))) == 2
    script, worker = recorder.read_all()
    assert len(script.notes(Topic.LOADER)) == 21
    assert [one["num_workers"] for one in worker.notes(Topic.LOADER)] == [1]
    assert [event.text["num_workers"] for event in worker.of(Kind.FETCH)] == [1, 1]
    (facts,) = worker.notes(Topic.LOADER)
    assert worker.texts[facts["site"]] == script.texts[facts["site"]]


def test_a_child_that_goes_on_with_its_parents_pass_tells_whose_it_is(recorder: Recorder) -> None:
    loader = LoaderProbe()
    recorder.start(loader, FetchProbe(loader))
    iterator = iter(DataLoader(Rows(9)))
    next(iterator)
    built = DataLoader(Rows(7))
    first_of(built)
    assert len(list(DataLoader(Drawing(iterator), num_workers=1))) == 2
    _, worker = recorder.read_all()
    found = worker.of(Kind.LOADER_NEXT)
    assert [event.text["dataset_length"] for event in found] == [9, 9]
    assert sorted(one["dataset_length"] for one in worker.notes(Topic.LOADER)) == [2, 9]


def test_a_child_that_begins_a_pass_of_its_parents_loader_tells_whose_it_is(
    recorder: Recorder,
) -> None:
    class Around(Rows):
        def __getitem__(self, index: int) -> int:
            return int(first_of(inner))

    loader = LoaderProbe()
    recorder.start(loader, FetchProbe(loader))
    inner = DataLoader(Rows(9))
    first_of(inner)
    assert len(list(DataLoader(Around(2), num_workers=1))) == 2
    _, worker = recorder.read_all()
    found = worker.of(Kind.LOADER_INIT, Kind.LOADER_PASS, Kind.LOADER_NEXT)
    assert {event.text["dataset_length"] for event in found} == {9}
