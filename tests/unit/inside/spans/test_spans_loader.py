"""What is recorded of DataLoaders."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.loaders import Numbers, Stream
from support.session import Event, FakeClock, Recorder
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic

Compare = Callable[..., Any]
SITE = Topic.SITE


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


@pytest.mark.parametrize("workers", [0, 1])
def test_who_goes_through_a_loader_and_how_often(watched: Recorder, workers: int) -> None:
    loader = DataLoader(Numbers(2), num_workers=workers, persistent_workers=workers > 0)

    def go() -> int:
        for _ in loader:
            pass
        return sys._getframe().f_lineno - 2

    lines = [go(), go()]
    call = sys._getframe().f_lineno - 1
    recording = watched.read()
    passes = recording.of(Kind.LOADER_EPOCH)
    for event, line in zip(passes, lines, strict=True):
        stack = json.loads(recording.texts[event.value][1])
        places = [json.loads(recording.texts[site][1])[1:] for site in stack[:2]]
        assert places == [
            [line, "go"],
            [call, "test_who_goes_through_a_loader_and_how_often"],
        ]
    kinds = recording.kinds()
    assert [kinds.count(f"LOADER_{kind}") for kind in ("INIT", "RESET", "NEXT", "END")] == [
        *((1, 2) if workers else (2, 0)),
        *(4, 2),
    ]


def test_workers_that_end_with_an_epoch_or_otherwise(watched: Recorder) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1)
    for _ in loader:
        pass
    recording = watched.read()
    assert len(recording.of(Kind.LOADER_END)) == 1
    assert recording.of(Kind.LOADER_CLOSE) == []  # that was part of the end
    assert [event.value for event in recording.of(Kind.SAMPLER)] == [2] * (len(Numbers()) // 2)
    for _ in loader:
        break
    recording = watched.read()
    assert len(recording.of(Kind.LOADER_END)) == 1
    [init, _] = recording.of(Kind.LOADER_INIT)
    [closed] = recording.of(Kind.LOADER_CLOSE)
    assert closed.site == init.site
    assert closed.ns > 0


def test_a_loader_is_named_by_the_line_that_builds_it_else_iterates_it(recorder: Recorder) -> None:
    before = DataLoader(Numbers())
    recorder.start(LoaderProbe())
    train = DataLoader(Numbers(), batch_size=2)
    lines = [line_here(-1)]
    own = Own(Numbers())
    lines.append(line_here(-1))
    for _ in zip(train, own, strict=False):
        pass
    next(iter(before))
    lines.append(line_here(-1))
    events = recorder.read().of(Kind.LOADER_NEXT)
    assert list(dict.fromkeys(site_of(recorder, event) for event in events)) == lines


class Sized(Stream):
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("asks", [False, True])
def test_torchs_warning_of_a_length(same_with_us: Compare, recorder: Recorder, asks: bool) -> None:
    def warned() -> list[str]:
        loader = DataLoader(Sized(), num_workers=2)  # each worker gives all of it
        if asks:
            len(loader)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert len(list(loader)) == 10
        return [re.sub("0x[0-9a-f]+", "", str(warning.message)) for warning in seen]

    _, texts = same_with_us(warned)
    assert any("Length of IterableDataset" in text for text in texts) is asks
    metadata = recorder.read().notes(Topic.LOADER)[-1]
    assert (metadata["dataset_length"], metadata["length"]) == (5, 5)


def test_two_loaders_of_one_line_are_two_and_one_rebuilt_is_one(watched: Recorder) -> None:
    loaders = [DataLoader(Numbers()) for _ in range(2)]
    for loader in loaders:
        next(iter(loader))
    assert len({event.site for event in watched.read().of(Kind.LOADER_NEXT)}) == 2
    del loader, loaders
    for _ in range(3):
        list(DataLoader(Numbers(2)))
    again = [e.site for e in watched.read().of(Kind.LOADER_NEXT) if e.text["dataset_length"] == 2]
    assert (len(again), len(set(again))) == (6, 1)


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


def test_the_package_that_builds_a_loader_is_told_beside_the_users_line(watched: Recorder) -> None:
    train = installed("planted_trainer/data/loops.py", TRAINER)["train"]
    prepare = installed("planted_wrapper.py", WRAPPER)["prepare"]
    inside = train(Numbers())
    first = sys._getframe().f_lineno - 1
    rebuilt_inside = train(Numbers(), prepare)
    mine = Own(Numbers())
    rebuilt = prepare(mine)
    alone = prepare(SimpleNamespace(dataset=Numbers(), batch_sampler=[[0]]))
    for loader in (inside, rebuilt_inside, mine, rebuilt, alone):
        next(iter(loader))
    recording = watched.read()
    places = {site: json.loads(x) for site, (topic, x) in recording.texts.items() if topic is SITE}
    notes = recording.notes(Topic.LOADER)
    built = [(x["built_by"], places.get(x["built_at"], (None, None))[1]) for x in notes]
    trainer = ("planted_trainer", 3)
    assert built == [trainer, trainer, (None, None), (None, None), ("planted_wrapper", 3)]
    lines = [places[x["site"]][1] - first for x in notes]
    assert lines[:4] == [0, 2, 3, 3]
    assert [note["is_taken_over"] for note in notes] == [False, True, False, True, False]


LOOP = """
def on_advance_start(build):
    return next(iter(build()))
def run(build):
    return next(iter(build()))
"""


@pytest.mark.parametrize(
    ("package", "name", "is_noted"),
    [
        ("lightning/pytorch/loops", "on_advance_start", True),
        ("pytorch_lightning/loops", "on_advance_start", True),
        ("lightning/pytorch/loops", "run", False),
        ("planted_trainer", "on_advance_start", False),
    ],
)
def test_a_library_that_builds_loaders_again_for_later_epochs_is_noted(
    watched: Recorder, package: str, name: str, is_noted: bool
) -> None:
    loop = installed(f"{package}/fit_loop.py", LOOP)[name]
    for _ in range(2):
        loop(lambda: DataLoader(Numbers()))
    notes = watched.read().notes(Topic.ENVIRONMENT)
    assert ({"reloads_loaders": True} in notes) is is_noted


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
        (partial(pad, width=9), "pad"),
        (lambda samples: samples, "<lambda>"),
        (LIBRARY["closed_over"](LIBRARY["Around"](pad)), "pad"),
        (LIBRARY["Around"](LIBRARY["Around"](None)), None),
        (None, None),
    ],
    ids=lambda _: "",
)
def test_where_collating_begins(watched: Recorder, collate: Any, begins: str | None) -> None:
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


@pytest.mark.parametrize("is_named", [False, True])
def test_a_later_iterator_class_with_other_arguments(watched: Recorder, is_named: bool) -> None:
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
