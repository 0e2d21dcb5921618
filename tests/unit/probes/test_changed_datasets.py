"""What training changes in a dataset between passes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.session import Recorder
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
