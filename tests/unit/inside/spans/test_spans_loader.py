"""What is recorded of DataLoaders."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.loaders import Numbers, Stream, loader_probes
from support.session import Event, FakeClock, Recorder
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic

Compare = Callable[..., Any]


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        raise KeyError(f"sample {index}")


class Own(DataLoader[int]):
    def __init__(self, dataset: Any, **options: Any) -> None:
        options.setdefault("batch_size", 3)
        super().__init__(dataset, **options)


class Slow(Numbers):
    def __init__(self, clock: FakeClock, ns: int) -> None:
        super().__init__(4)
        self.clock, self.ns = clock, ns

    def __getitem__(self, index: int) -> int:
        self.clock.advance(self.ns)
        return super().__getitem__(index)


def line_here(offset: int = 0) -> str:
    return f"test_spans_loader.py:{sys._getframe(1).f_lineno + offset}"


def site_of(recorder: Recorder, event: Event) -> str:
    """file:line of the loader that an event belongs to."""
    _, text = recorder.read().texts[event.text["site"]]
    file, line, _ = json.loads(text)
    return f"{file.rsplit('/', 1)[1]}:{line}"


def metadata_of(recorder: Recorder, loader: DataLoader[Any]) -> dict[str, Any]:
    """Returns what is noted of a loader as it is iterated."""
    next(iter(loader))
    metadata: dict[str, Any] = recorder.read().notes(Topic.LOADER)[-1]
    return metadata


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"batch_sampler": [[0], [1, 2]]}])
def test_the_iterators_class_is_unchanged(recorder: Recorder, options: dict[str, Any]) -> None:
    bare = type(iter(DataLoader(Numbers(), **options)))
    recorder.start(LoaderProbe())
    assert type(iter(DataLoader(Numbers(), **options))) is bare


def test_waits_are_the_datasets_time(recorder: Recorder) -> None:
    clock = FakeClock()
    recorder.start(LoaderProbe(), now=clock)
    for _ in range(2):
        for _ in DataLoader(Slow(clock, 500), batch_size=2):
            clock.advance(10_000)
    recording = recorder.read()
    nexts = recording.of(Kind.LOADER_NEXT)
    assert [(event.ns, event.value) for event in nexts] == [(1000, 1), (1000, 2)] * 2
    assert [event.ns for event in recording.of(Kind.LOADER_END)] == [0, 0]
    assert recording.of(Kind.SAMPLER) == []  # without workers the fetch tells
    assert len(recording.of(Kind.LOADER_INIT)) == 2
    assert len(recording.of(Kind.LOADER_BUILT)) == 2


@pytest.fixture
def watched(recorder: Recorder) -> Recorder:
    recorder.start(LoaderProbe())
    return recorder


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_pass_tells_who_goes_through_it(watched: Recorder, options: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(), **options)

    def go() -> int:
        for _ in loader:
            pass
        return sys._getframe().f_lineno - 2

    lines = [go(), go()]
    call = sys._getframe().f_lineno - 1
    recording = watched.read()
    begun = recording.of(Kind.LOADER_PASS)
    stacks = [json.loads(recording.texts[event.value][1]) for event in begun]
    assert len(begun) == 2
    for stack, line in zip(stacks, lines, strict=True):
        places = [json.loads(recording.texts[site][1]) for site in stack[:2]]
        assert [place[1:] for place in places] == [
            [line, "go"],
            [call, "test_a_pass_tells_who_goes_through_it"],
        ]


def test_workers_that_end_with_a_pass_or_otherwise(watched: Recorder) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1)
    for _ in loader:
        pass
    recording = watched.read()
    assert len(recording.of(Kind.LOADER_END)) == 1
    assert recording.of(Kind.LOADER_CLOSE) == []  # that was part of the end
    for _ in loader:
        break
    recording = watched.read()
    assert len(recording.of(Kind.LOADER_END)) == 1
    [init, _] = recording.of(Kind.LOADER_INIT)
    [closed] = recording.of(Kind.LOADER_CLOSE)
    assert closed.site == init.site
    assert closed.ns > 0


def test_the_indices_that_workers_are_sent_are_counted(watched: Recorder) -> None:
    for _ in DataLoader(Numbers(), batch_size=2, num_workers=1):
        pass
    drawn = watched.read().of(Kind.SAMPLER)
    assert [event.value for event in drawn] == [2] * (len(Numbers()) // 2)


def test_a_loader_is_named_by_the_line_that_builds_it(watched: Recorder) -> None:
    train = DataLoader(Numbers(), batch_size=2)
    train_line = line_here(-1)
    own = Own(Numbers())
    own_line = line_here(-1)
    for _ in zip(train, own, strict=False):
        pass
    sites = {site_of(watched, event) for event in watched.read().of(Kind.LOADER_NEXT)}
    assert sites == {train_line, own_line}


def test_a_loader_built_before_us_is_named_by_its_first_iteration(recorder: Recorder) -> None:
    loader = DataLoader(Numbers())
    recorder.start(LoaderProbe())
    next(iter(loader))
    here = line_here(-1)
    assert site_of(recorder, recorder.read().of(Kind.LOADER_NEXT)[0]) == here


class Loud(Numbers):
    """Whoever asks for its length draws a number, and is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        torch.rand(1)
        return super().__len__()


class Batches:
    def __init__(self) -> None:
        self.drawn: list[float] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(6).view(3, 2).tolist())

    def __len__(self) -> int:
        self.drawn.append(torch.rand(1).item())
        return 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_length_that_draws_numbers_is_not_asked_for(same_with_us: Compare, workers: int) -> None:
    def epochs() -> Any:
        dataset, batches = Loud(), Batches()
        loaders = [
            DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers),
            DataLoader(dataset, batch_size=3, num_workers=workers),
            DataLoader(Numbers(), batch_sampler=batches, num_workers=workers),
        ]
        seen = [[batch.tolist() for batch in loader] for loader in loaders for _ in range(2)]
        return seen, dataset.asked, batches.drawn

    assert same_with_us(epochs)[0] == "returned"


class Sized(Stream):
    def __len__(self) -> int:
        return 5


def test_torch_warns_of_the_length_of_a_stream_only_if_the_script_asks_for_it(
    same_with_us: Compare, recorder: Recorder
) -> None:
    def warned(asks: bool) -> list[str]:
        loader = DataLoader(Sized(), num_workers=2)  # each worker gives all of it
        if asks:
            len(loader)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert len(list(loader)) == 10
        return [re.sub("0x[0-9a-f]+", "", str(warning.message)) for warning in seen]

    assert same_with_us(lambda: warned(False)) == ("returned", [])
    _, texts = same_with_us(lambda: warned(True))
    assert "Length of IterableDataset" in texts[0]
    metadata = recorder.read().notes(Topic.LOADER)[-1]
    assert (metadata["dataset_length"], metadata["length"]) == (5, 5)


def test_two_loaders_of_one_line_are_two_and_one_rebuilt_is_one(watched: Recorder) -> None:
    loaders = [DataLoader(Numbers()) for _ in range(2)]
    for loader in loaders:
        next(iter(loader))
    assert len({event.site for event in watched.read().of(Kind.LOADER_NEXT)}) == 2
    del loader, loaders
    for _ in range(3):
        for _ in DataLoader(Numbers(2)):
            pass
    again = [e for e in watched.read().of(Kind.LOADER_NEXT) if e.text["dataset_length"] == 2]
    assert len(again) == 6
    assert len({event.site for event in again}) == 1


def installed(file: str, source: str) -> dict[str, Any]:
    """Returns what a module of an installed package defines."""
    names: dict[str, Any] = {"DataLoader": DataLoader}
    exec(compile(source, f"{sysconfig.get_path('purelib')}/{file}", "exec"), names)
    return names


TRAINER = """
def train(dataset, rebuild=lambda loader: loader):
    loader = DataLoader(dataset, batch_size=2)
    return rebuild(loader)
"""
WRAPPER = """
def prepare(loader):
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
"""


def who_built(recorder: Recorder, loader: DataLoader[Any]) -> tuple[str, str | None, str | None]:
    """Returns file:line of the loader, the package that built it, and file:line in there."""
    metadata = metadata_of(recorder, loader)
    texts = recorder.read().texts
    user, package = (
        f"{file.rsplit('/', 1)[1]}:{line}"
        for file, line, _ in (
            json.loads(texts[metadata[key]][1]) if metadata[key] else ("/", 0, "")
            for key in ("site", "built_at")
        )
    )
    return user, metadata["built_by"], package


def test_the_package_that_builds_a_loader_is_told_beside_the_users_line(watched: Recorder) -> None:
    train = installed("planted_trainer/data/loops.py", TRAINER)["train"]
    prepare = installed("planted_wrapper.py", WRAPPER)["prepare"]
    inside = train(Numbers())
    inside_line = line_here(-1)
    rebuilt_inside = train(Numbers(), prepare)
    rebuilt_line = line_here(-1)
    mine = Own(Numbers())
    mine_line = line_here(-1)
    rebuilt = prepare(mine)
    alone = prepare(SimpleNamespace(dataset=Numbers(), batch_sampler=[[0]]))
    assert who_built(watched, inside) == (inside_line, "planted_trainer", "loops.py:3")
    assert who_built(watched, rebuilt_inside) == (rebuilt_line, "planted_trainer", "loops.py:3")
    assert who_built(watched, mine) == (mine_line, None, ":0")
    assert who_built(watched, rebuilt) == (mine_line, None, ":0")
    assert who_built(watched, alone)[1] == "planted_wrapper"
    notes = watched.read().notes(Topic.LOADER)
    assert [note["is_taken_over"] for note in notes] == [False, True, False, True, False]


class Padding:
    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples

    def pad(self, samples: list[Any]) -> list[Any]:
        return samples


def pad(samples: list[Any], width: int = 8) -> list[Any]:
    return samples


# Hugging Face's Trainer puts such an object around the script's collate function.
LIBRARY = installed(
    "trainer/collate.py",
    """
class Around:
    def __init__(self, collate):
        self.name, self.collate = "collate", collate

    def __call__(self, samples):
        return self.collate(samples)

def closed_over(collate):
    return lambda samples: collate(samples)
""",
)


@pytest.mark.parametrize(
    ("collate", "begins"),
    [
        (pad, "pad"),
        (partial(pad, width=9), "pad"),
        (Padding(), "__call__"),
        (Padding().pad, "pad"),
        (lambda samples: samples, "<lambda>"),
        (LIBRARY["Around"](pad), "pad"),
        (LIBRARY["closed_over"](LIBRARY["Around"](pad)), "pad"),
        (LIBRARY["Around"](LIBRARY["Around"](None)), None),
        (None, None),
    ],
    ids=lambda _: "",
)
def test_where_the_scripts_collate_function_begins(
    watched: Recorder, collate: Any, begins: str | None
) -> None:
    iter(DataLoader([1, 2], collate_fn=collate))
    recording = watched.read()
    [metadata] = recording.notes(Topic.LOADER)
    site = metadata["collate_site"]
    assert (None if site is None else json.loads(recording.texts[site][1])[2]) == begins


@pytest.mark.parametrize(
    ("script", "guards"),
    [
        ("train()\n", False),
        ('if __name__ == "__main__":\n    train()\n', True),
        ("if '__main__'== __name__:\n    train()\n", True),
        ("log = logging.getLogger(__name__)\ntrain()\n", False),
    ],
)
def test_how_workers_would_be_started_is_known_before_there_are_any(
    script: str, guards: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    monkeypatch.setattr("__main__.__file__", str(tmp_path / "train.py"), raising=False)
    recorder.start(LoaderProbe())
    held = Numbers()
    held.how = lambda x: x  # type: ignore[attr-defined]
    next(iter(DataLoader(held)))
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    next(iter(DataLoader(held)))
    forked, spawned = recorder.read().notes(Topic.LOADER)
    assert forked["start_method"] is spawned["start_method"] is None
    assert (forked["workers_started_by"], spawned["workers_started_by"]) == ("fork", "spawn")
    assert (forked["unpicklable"], spawned["unpicklable"]) == ([], ["dataset.how (a lambda)"])
    assert "guards_main" not in forked
    assert spawned["guards_main"] is guards


def test_batches_that_are_made_on_a_device(watched: Recorder) -> None:
    here, there = (
        DataLoader(TensorDataset(torch.zeros(8, 2, device=device)), 2) for device in ("cpu", "meta")
    )
    for loader in (here, there, there):
        assert len(list(loader)) == 4
    recording = watched.read()
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "batch_on_device" in x]
    [last] = {event.site for event in recording.of(Kind.LOADER_NEXT)[4:]}
    assert notes == [{"batch_on_device": last}]


def test_persistent_workers_reset_instead_of_starting_again(watched: Recorder) -> None:
    loader = DataLoader(Numbers(2), num_workers=1, persistent_workers=True)
    for _ in range(3):
        assert len(list(loader)) == 2
    recording = watched.read()
    assert len(recording.of(Kind.LOADER_INIT)) == 1
    assert len(recording.of(Kind.LOADER_RESET)) == 3
    assert len(recording.of(Kind.LOADER_NEXT)) == 6
    assert len(recording.of(Kind.LOADER_END)) == 3


class InTurn:
    """A sampler whose iterators are made while another thread makes one."""

    def __init__(self, began: threading.Event, goes_on: threading.Event) -> None:
        self.began, self.goes_on = began, goes_on

    def __iter__(self) -> Iterator[list[int]]:
        self.began.set()
        assert self.goes_on.wait(30)
        return iter([[0, 1], [2]])


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_that_make_iterators_at_once(recorder: Recorder, workers: int) -> None:
    probes = loader_probes(FetchProbe)
    recorder.start(*probes)
    loader_probe: Any = probes[0]
    began, ended = [threading.Event(), threading.Event()], threading.Event()
    # The first begins, the second does, the first is done, the second is.
    loaders = [
        DataLoader(Numbers(), batch_sampler=InTurn(began[0], began[1]), num_workers=workers),
        DataLoader(Numbers(), batch_sampler=InTurn(began[1], ended), num_workers=workers),
    ]

    def go(number: int) -> int:
        iterator = iter(loaders[number])
        ended.set()
        return len(list(iterator)) + loader_probe.creating

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(go, 0)
        assert began[0].wait(30)
        second = threads.submit(go, 1)
        assert [first.result(), second.result()] == [2, 2]
    assert loader_probe.creating == 0
    recording = recorder.read()
    for kind in (Kind.LOADER_INIT, Kind.LOADER_PASS, Kind.LOADER_BUILT):
        assert len({event.site for event in recording.of(kind)} - {0}) == 2, kind
    numbers = {event.site for event in recording.of(Kind.LOADER_NEXT)}
    fetches = [event for log in recorder.read_all() for event in log.of(Kind.FETCH)]
    assert {event.site for event in fetches} == (numbers if workers else {0})


def test_an_error_is_no_end(watched: Recorder) -> None:
    with pytest.raises(KeyError):
        next(iter(DataLoader(Broken())))
    assert watched.read().kinds()[-1] == "LOADER_ERROR"


def test_a_warning_from_below_points_where_it_did(same_with_us: Compare) -> None:
    def caught() -> list[tuple[str, int]]:
        places = []
        for level in range(1, 7):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")

                class Loud(Numbers):
                    def __getitem__(self, index: int, level: int = level) -> int:
                        warnings.warn("odd sample", stacklevel=level)
                        return super().__getitem__(index)

                list(DataLoader(Loud(1)))
                places += [(warning.filename, warning.lineno) for warning in seen]
        return places

    _, places = same_with_us(caught)
    assert any(file == __file__ for file, _ in places[4:])


def test_iterator_classes_of_later_packages_are_seen(watched: Recorder) -> None:

    class Later(torch_dataloader._BaseDataLoaderIter):
        def __init__(self, loader: DataLoader[Any]) -> None:
            super().__init__(loader)

        def _next_data(self) -> int:
            return 7

    iterator = Later(DataLoader(Numbers()))
    assert next(iterator) == 7
    assert watched.read().kinds()[-2:] == ["LOADER_INIT", "LOADER_NEXT"]


@pytest.mark.parametrize("is_named", [False, True])
def test_an_iterator_class_that_takes_more_than_the_loader(
    watched: Recorder, is_named: bool
) -> None:

    class Moving(torch_dataloader._SingleProcessDataLoaderIter):
        def __init__(self, device: str, loader: DataLoader[Any]) -> None:
            super().__init__(loader)
            self.device = device

    class Prefetching(DataLoader[Any]):
        def __iter__(self) -> Any:
            return Moving("cpu", loader=self) if is_named else Moving("cpu", self)

    assert len(list(Prefetching(Numbers(), batch_size=2))) == 3
    recording = watched.read()
    [metadata] = recording.notes(Topic.LOADER)
    assert metadata["kind"].endswith(".Prefetching")
    assert (metadata["dataset"], metadata["length"]) == ("Numbers", 3)
    assert len({event.site for event in recording.of(Kind.LOADER_INIT, Kind.LOADER_NEXT)}) == 1
