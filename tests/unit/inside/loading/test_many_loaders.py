"""Scripts that build loaders by hundreds: one for each client, task or document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loaders import Numbers, loader_probes
from support.session import Recorder
from torch.utils.data import DataLoader

from trainprof.inside.loading import loader_metadata
from trainprof.inside.loading.loader_metadata import FIRST_INSPECTIONS
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic


class Others(Numbers):
    pass


class Reading(Numbers):
    def __init__(self, length: int, file: Any) -> None:
        super().__init__(length)
        self.file = file


class Drawing(Numbers):
    """Goes on with another loader's pass in each sample."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__(2)
        self.iterator = iterator

    def __getitem__(self, index: int) -> int:
        return int(next(self.iterator))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of datasets that were gone through."""
    lengths: list[int] = []
    plain = loader_metadata.inspect_closely

    def inspect_closely(loader: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        lengths.append(loader.dataset.length)
        return plain(loader, *arguments, **options)

    monkeypatch.setattr(loader_metadata, "inspect_closely", inspect_closely)
    return lengths


def first_of(loader: DataLoader[Any]) -> Any:
    return next(iter(loader))


def test_fewer_loaders_of_a_line_are_inspected(recorder: Recorder, looked_at: list[int]) -> None:
    recorder.start(LoaderProbe())
    for length in range(1, 101):
        first_of(DataLoader(Numbers(length)))
    assert FIRST_INSPECTIONS == 8
    assert looked_at == [*range(1, 9), 16, 32, 64]
    notes = recorder.read().notes(Topic.LOADER)
    assert [note["dataset_length"] for note in notes] == list(range(1, 101))
    names = ("open_files", "generators", "unpicklable")
    assert not any(note[name] for note in notes for name in names)


def test_another_kind_of_loader_is_inspected(recorder: Recorder, looked_at: list[int]) -> None:
    recorder.start(LoaderProbe())
    loads: list[tuple[Numbers, dict[str, Any]]] = [(Numbers(5), {})] * 20
    loads += [(Others(6), {}), (Numbers(7), {"num_workers": 1})]
    loads += [(Numbers(8), {"shuffle": True}), (Numbers(9), {"batch_size": 3})]
    for dataset, options in loads:
        first_of(DataLoader(dataset, **options))
    assert looked_at[-4:] == [6, 7, 8, 9]


def test_loaders_built_again_stay_what_they_were(recorder: Recorder, tmp_path: Path) -> None:
    recorder.start(LoaderProbe())
    path = tmp_path / "data"
    path.write_bytes(b"data")
    with path.open("rb") as file:
        datasets = Reading(6, file), Reading(3, None)
        for _ in range(20):
            for dataset in datasets:
                first_of(DataLoader(dataset))
    recording = recorder.read()
    assert [note["open_files"] for note in recording.notes(Topic.LOADER)] == [
        ["file (BufferedReader)"],
        [],
    ]
    first, second = dict.fromkeys(event.site for event in recording.of(Kind.LOADER_NEXT))
    sites = [event.site for event in recording.of(Kind.LOADER_NEXT)]
    assert sites == [first, second] * 20


def test_a_child_writes_only_loaders_it_has_to_do_with(recorder: Recorder) -> None:
    recorder.start(*loader_probes(FetchProbe))
    for length in range(1, 21):
        first_of(DataLoader(Numbers(length)))
    iterator = iter(DataLoader(Numbers(9)))
    next(iterator)
    assert len(list(DataLoader(Drawing(iterator), num_workers=1))) == 2
    script, worker = recorder.read_all()
    assert len(script.notes(Topic.LOADER)) == 22
    metadata, parents = sorted(worker.notes(Topic.LOADER), key=lambda note: note["dataset_length"])
    assert (metadata["dataset_length"], parents["dataset_length"]) == (2, 9)
    assert [event.text for event in worker.of(Kind.LOADER_NEXT)] == [parents] * 2
    assert metadata in [event.text for event in worker.of(Kind.FETCH)]
    assert worker.texts[metadata["site"]] == script.texts[metadata["site"]]
