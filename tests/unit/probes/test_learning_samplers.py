"""What training changes in a sampler between two batches of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.session import Recorder
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic

BATCHES = 5


class Memory:
    def __init__(self) -> None:
        self.priorities = [1.0] * 20


class Learning(Sampler[int]):
    """Draws by weights, and remembers what it drew last."""

    def __init__(self) -> None:
        self.weights = torch.ones(20)
        self.losses = np.ones(20)
        self.seen: dict[int, float] = {}
        self.memory = Memory()
        self.last = -1
        self.drawn = 0

    def __len__(self) -> int:
        return 2 * BATCHES

    def __iter__(self) -> Iterator[int]:
        for index in range(len(self)):
            self.last = index
            self.drawn += 1
            self.weights.mul_(0.5)
            yield index


def in_tensor(sampler: Learning, step: int) -> None:
    sampler.weights[step] = 3.0


def in_array(sampler: Learning, step: int) -> None:
    sampler.losses[step] = 3.0


def in_dict(sampler: Learning, step: int) -> None:
    sampler.seen[0] = step


def in_memory(sampler: Learning, step: int) -> None:
    sampler.memory.priorities[7] = step


def every_second(sampler: Learning, step: int) -> None:
    sampler.weights = torch.ones(20) if step % 2 else sampler.weights


def nothing(sampler: Learning, step: int) -> None:
    pass


def changed(recorder: Recorder, loader: Any, change: Callable[[int], None]) -> list[str]:
    recorder.start(LoaderProbe())
    for _ in range(2):
        for step, _ in enumerate(loader):
            change(step)
    return learned(recorder)


def learned(recorder: Recorder) -> list[str]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    told = [note.get("learning_sampler") for note in recording.notes(Topic.ENVIRONMENT)]
    return [one["attribute"] for one in told if one is not None]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (in_tensor, ["weights"]),
        (in_array, ["losses"]),
        (in_dict, ["seen"]),
        (in_memory, ["memory.priorities"]),
        (every_second, ["weights"]),
        (nothing, []),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("as_batches", [False, True])
def test_what_the_loop_changes_in_a_sampler(
    change: Callable[[Learning, int], None],
    names: list[str],
    workers: int,
    as_batches: bool,
    recorder: Recorder,
) -> None:
    sampler, data = Learning(), list(range(20))
    drawn = BatchSampler(sampler, 2, drop_last=False)
    loader: Any = DataLoader(data, 2, sampler=sampler, num_workers=workers)
    if as_batches:
        loader = DataLoader(data, batch_sampler=drawn, num_workers=workers)
    assert changed(recorder, loader, lambda step: change(sampler, step)) == names


def test_torchs_samplers_are_not_looked_at(recorder: Recorder) -> None:
    data = list(range(2 * BATCHES))
    sampler = RandomSampler(data)

    def change(step: int) -> None:
        sampler.seen = step  # type: ignore[attr-defined]

    assert changed(recorder, DataLoader(data, 2, sampler=sampler), change) == []


@pytest.mark.parametrize("is_left", [False, True])
def test_what_is_changed_between_passes_is_no_learning_within(
    is_left: bool, recorder: Recorder
) -> None:
    recorder.start(LoaderProbe())
    sampler = Learning()
    loader: Any = DataLoader(
        list(range(20)), 2, sampler=sampler, num_workers=1, persistent_workers=True
    )
    for epoch in range(3):
        sampler.losses = np.full(20, epoch)
        for _ in loader:
            if is_left:
                break
    del loader
    assert learned(recorder) == []


def test_batches_of_batches_end(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    drawn = BatchSampler(Learning(), 2, drop_last=False)
    inner, drawn.sampler = drawn.sampler, drawn
    loader: Any = DataLoader(list(range(20)), batch_sampler=drawn)
    iterator = iter(loader)
    drawn.sampler = inner
    assert len(list(iterator)) == BATCHES
    assert learned(recorder) == []
