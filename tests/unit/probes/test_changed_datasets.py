"""What training changes in a dataset between passes."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.session import Recorder
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Subset

from trainprof.probes.kept_value import kept
from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic


class Curriculum:
    def __init__(self) -> None:
        self.level = 0
        self.name = "easy"
        self.made = 0
        self.rate = float("nan")
        self.held: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.made += 1
        self.held = self.held or [index]
        return self.level


def set_level(dataset: Curriculum, epoch: int) -> None:
    dataset.level = epoch


def rename(dataset: Curriculum, epoch: int) -> None:
    dataset.name = ("easy", "hard", "easy")[epoch]
    dataset.level = epoch // 2


def read_anew(dataset: Curriculum, epoch: int) -> None:
    dataset.name = " ".join(["a long text"] * 1000)


def write_on(dataset: Curriculum, epoch: int) -> None:
    dataset.name = " ".join(["a long text"] * (1000 + epoch))


def nothing(dataset: Curriculum, epoch: int) -> None:
    dataset.level = 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_level, ["level"]),
        (rename, ["name", "level"]),
        (nothing, []),
        (read_anew, []),
        (write_on, ["name"]),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda data: DataLoader(data, 2),
        lambda data: DataLoader(Subset(data, [0, 1]), 2),
        lambda data: DataLoader(data, 2, num_workers=1),
        lambda data: DataLoader(data, 2, num_workers=1, persistent_workers=True),
    ],
)
def test_what_training_changes_between_passes(
    make: Callable[[Any], Any],
    change: Callable[[Curriculum, int], None],
    expected: list[str],
    recorder: Recorder,
) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = make(dataset)
    for epoch in range(3):
        change(dataset, epoch)
        assert len(list(loader)) > 0
    del loader
    assert changed(recorder) == expected


def test_what_the_dataset_changes_itself_is_not_meant(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = DataLoader(dataset, 2)
    for _ in range(2):
        list(loader)
    assert dataset.made == 8
    assert changed(recorder) == []


def test_a_pass_that_is_broken_off_tells_nothing(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    loader = DataLoader(dataset, 2)
    next(iter(loader))
    dataset.level = 1
    list(loader)
    assert changed(recorder) == []


def test_a_long_text_is_not_kept_alive(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    dataset.name = " ".join(["a long text"] * 1000)
    before = sys.getrefcount(dataset.name)
    loader = DataLoader(dataset, 2)
    list(loader)
    after = sys.getrefcount(dataset.name)
    assert after == before
    dataset.name = "short"
    list(loader)
    assert changed(recorder) == ["name"]


class Sampled:
    """Draws what is not in the data anew for each pass, as recommenders do."""

    def __init__(self) -> None:
        self.drawn: Any = [0] * 4
        self.fixed = list(range(100))
        self.cached: dict[int, int] = {}
        self.level = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.cached[index] = index
        return index


def numbers(epoch: int) -> list[float]:
    return [epoch + index / 10 for index in range(100)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "draw",
    [
        numbers,
        lambda epoch: [epoch] * 4,
        lambda epoch: dict.fromkeys(numbers(epoch)),
        lambda epoch: set(numbers(epoch)),
        lambda epoch: tuple(numbers(epoch)),
        lambda epoch: np.array(numbers(epoch)),
        lambda epoch: np.array(float(epoch)),
        lambda epoch: torch.tensor(numbers(epoch)),
        lambda epoch: torch.nn.Parameter(torch.tensor(numbers(epoch))),
        lambda epoch: random.Random(epoch),
    ],
)
def test_what_training_replaces_between_passes(
    draw: Callable[[int], object], workers: int, recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    loader = DataLoader(dataset, 2, num_workers=workers)
    for epoch in range(3):
        dataset.drawn = draw(epoch)
        list(loader)
    assert changed(recorder) == ["drawn"]


def fill_anew(drawn: list[Any], epoch: int) -> None:
    drawn[:] = numbers(epoch)


def fill_further(drawn: list[Any], epoch: int) -> None:
    drawn.append(epoch)


def shuffle(drawn: list[Any], epoch: int) -> None:
    drawn.reverse()


@pytest.mark.parametrize("change", [fill_anew, fill_further, shuffle])
def test_what_training_changes_within_a_list(
    change: Callable[[list[Any], int], None], recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    dataset.drawn = [object() for _ in range(100)]
    loader = DataLoader(dataset, 2)
    for epoch in range(3):
        change(dataset.drawn, epoch)
        list(loader)
    assert changed(recorder) == ["drawn"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "same",
    [
        lambda dataset, epoch: None,
        lambda dataset, epoch: [3, "a", 0.5],
        lambda dataset, epoch: (32 + len(str(epoch)), 32),
        lambda dataset, epoch: dataset.fixed,
    ],
)
def test_what_is_the_same_in_each_pass(
    same: Callable[[Sampled, int], object], workers: int, recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    loader = DataLoader(dataset, 2, num_workers=workers)
    for epoch in range(3):
        dataset.drawn = same(dataset, epoch)
        list(loader)
    assert changed(recorder) == []


def test_what_is_worked_out_at_its_first_use_is_no_change(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    dataset.drawn = None
    loader = DataLoader(dataset, 2)
    for _ in range(3):
        list(loader)
        dataset.drawn = dataset.drawn or numbers(0)
    assert changed(recorder) == []


@pytest.mark.parametrize("go", [next, lambda passing: list(itertools.islice(passing, 1))])
def test_of_passes_left_by_a_break_their_begins_are_compared(
    go: Callable[[Any], Any], recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    loader = DataLoader(dataset, 2, num_workers=1)
    for epoch in range(3):
        dataset.drawn = numbers(epoch)
        dataset.level = epoch
        go(iter(loader))
    assert changed(recorder) == ["drawn", "level"]


def test_with_workers_what_training_changes_in_a_pass_counts(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    loader = DataLoader(dataset, 2, num_workers=1)
    for epoch in range(2):
        for _ in loader:
            dataset.level = epoch + 1
    assert changed(recorder) == ["level"]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_another_loader_makes_is_not_meant(workers: int, recorder: Recorder) -> None:
    """Two parts of one dataset, which keeps what it has made."""
    recorder.start(LoaderProbe())
    dataset = Sampled()
    training = DataLoader(Subset(dataset, [0, 1]), 2, num_workers=workers)
    evaluating = DataLoader(Subset(dataset, [2, 3]), 2)
    for _ in range(3):
        list(training)
        list(evaluating)
    assert len(dataset.cached) == (2 if workers else 4)
    assert changed(recorder) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_set_back_for_each_loader_is_no_change(workers: int, recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    training = DataLoader(Subset(dataset, [0, 1]), 2, num_workers=workers)
    evaluating = DataLoader(Subset(dataset, [2, 3]), 2)
    for _ in range(3):
        for dataset.level, loader in enumerate((training, evaluating)):
            list(loader)
    assert changed(recorder) == []


def test_other_samples_of_a_subset(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    part = Subset(Sampled(), [0, 1])
    loader = DataLoader(part, 2)
    for epoch in range(3):
        part.indices = [epoch, epoch + 1]
        list(loader)
    assert changed(recorder) == ["indices"]


def test_another_dataset_is_no_change_of_one(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    for epoch in range(3):
        dataset = Sampled()
        dataset.drawn = numbers(epoch)
        list(DataLoader(dataset, 2))
    assert changed(recorder) == []


def test_a_loader_that_is_built_anew_has_the_same_dataset(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset = Sampled()
    for epoch in range(3):
        dataset.drawn = numbers(epoch)
        list(DataLoader(dataset, 2))
    assert changed(recorder) == ["drawn"]


class Weighed(list[float]):
    """What cannot be asked for anything."""

    def forbidden(self, *_: object) -> Any:
        raise AssertionError

    __len__ = __eq__ = __iter__ = __getitem__ = __getattr__ = __bool__ = forbidden
    __hash__ = forbidden


class Kind(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    __hash__ = type.__hash__


class Unlike(metaclass=Kind):
    pass


class Listening(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_function__(
        self, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.heard.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Asked(Sampled):
    """It notes who asks for all that it holds."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            object.__setattr__(self, "is_asked", True)
        return object.__getattribute__(self, name)


def test_nothing_of_the_scripts_is_called_or_kept_alive(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    dataset: Any = Asked()
    loader = DataLoader(dataset, 2, collate_fn=list)
    # Tensors are told by id: two that are there at once have two.
    batches = [torch.ones(3), torch.ones(4)]
    while batches:
        dataset.drawn, dataset.kind, dataset.batch = Weighed(), Unlike(), batches.pop()
        gone = [weakref.ref(getattr(dataset, name)) for name in ("drawn", "kind", "batch")]
        before, drawn = random.getstate(), np.random.get_state()[1].tolist()
        with Listening() as mode:
            assert sum(1 for _ in loader) == 2
        assert not {"__len__", "__get__", "size"}.intersection(mode.heard)
        assert (before, drawn) == (random.getstate(), np.random.get_state()[1].tolist())
        dataset.drawn = dataset.kind = dataset.batch = 0
        assert [one() for one in gone] == [None] * 3
    assert recorder.read().notes(Topic.PROBE_FAILED) == []
    assert changed(recorder) == ["drawn", "kind", "batch"]
    assert not hasattr(dataset, "is_asked")
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_a_dataset_is_forgotten_when_it_is_gone(recorder: Recorder) -> None:
    probe = LoaderProbe()
    recorder.start(probe)
    for _ in range(20):
        list(DataLoader(Sampled(), 2))
    assert not probe._datasets_between._watched


def test_of_one_dataset_some_loaders_are_remembered(recorder: Recorder) -> None:
    probe = LoaderProbe()
    recorder.start(probe)
    dataset = Sampled()
    loaders = [DataLoader(dataset, 2) for _ in range(40)]
    for loader in loaders:
        list(loader)
    (watched,) = probe._datasets_between._watched.values()
    assert len(watched.before) == 16
    assert not watched.making


LONG = "".join(map(str, range(5_000)))


@pytest.mark.parametrize("text", ["x" * 1_000, b"ab", 3, None, LONG, LONG.encode()])
def test_what_is_kept_of_a_value_tells_it_from_others(text: Any) -> None:
    assert kept(text) == kept(copy_of(text))
    if isinstance(text, (str, bytes)):
        for other in (text[1:], text[:-1], text + text[:1], text[:-1] + text[:1] * 2):
            assert kept(text) != kept(other)


@pytest.mark.parametrize("text", [LONG, LONG.encode()])
def test_a_long_text_is_kept_in_pieces(text: Any) -> None:
    assert len(pickle.dumps(kept(text))) < 3_000


def copy_of(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def changed(recorder: Recorder) -> list[str]:
    told = [note.get("changed_dataset") for note in recorder.read().notes(Topic.ENVIRONMENT)]
    return [one["attribute"] for one in told if one]


def test_torch_may_swap_what_was_looked_at(recorder: Recorder) -> None:
    """It swaps no tensor that somebody refers to, even weakly."""
    recorder.start(LoaderProbe())
    dataset = Curriculum()
    dataset.held = torch.ones(1)
    for _ in range(2):
        list(DataLoader(dataset, 2))
    torch.utils.swap_tensors(dataset.held, torch.zeros(1))
    assert recorder.read().notes(Topic.PROBE_FAILED) == []
