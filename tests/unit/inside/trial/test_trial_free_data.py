"""Free data: the same epochs and random numbers, from copies of the first batches."""

from __future__ import annotations

import mmap
import multiprocessing
import random
import threading
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder
from support.trials import end_of_process, faults, site_in, start_trial, trial_note
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from trainprof.inside.trial import free_data
from trainprof.inside.trial.free_data import (
    DEFAULT_AVAILABLE_BYTES,
    KeptBatch,
    available_bytes,
)
from trainprof.record.schema import Kind

Loader = DataLoader[Any]


class Counted(Dataset[torch.Tensor]):
    """Counts its samples, whatever process makes them."""

    def __init__(self, length: int = 14) -> None:
        self.length = length
        self.made = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.made.get_lock():
            self.made.value += 1
        return torch.tensor(float(index))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(14.0)


class Drawing(Sampler[int]):
    """Draws from both global generators as it goes."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(14):
            yield (int(torch.randint(14, ())) + random.randrange(14)) % 14

    def __len__(self) -> int:
        return 14


def made(dataset: Any, **options: Any) -> Loader:
    return DataLoader(dataset, batch_size=4, **options)


def made_elsewhere(dataset: Any, **options: Any) -> Loader:
    return DataLoader(dataset, batch_size=4, **options)


HERE = site_in(made)
WAYS = [
    {},
    {"num_workers": 1},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "prefetch_factor": 1},
]


@pytest.fixture
def keep_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches are enough."""
    monkeypatch.setattr(free_data, "MOST_KEPT", 2)


def train(loader: Any, passes: int) -> list[list[Any]]:
    """Returns each epoch: of each step a number of torch's and of Python's generator."""
    epochs = []
    for _ in range(passes):
        steps = []
        for batch in loader:
            steps.append((float(torch.rand(())), random.random()))
            batch += 100  # in place: the next one must not have it
        epochs.append(steps)
    return epochs


def seeded(action: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    random.seed(3)
    return action(), torch.get_rng_state().tolist(), random.getstate()


@pytest.mark.parametrize("kept", [2, 64])
@pytest.mark.parametrize("way", WAYS)
def test_passes_and_random_numbers_are_the_scripts(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any], kept: int
) -> None:
    def run() -> Any:
        dataset = Counted()
        loader = made(dataset, sampler=Drawing(), **way)
        return train(loader, 3), dataset, type(iter(loader)), len(loader)

    (plain, _, plain_type, _), *plain_state = seeded(run)
    monkeypatch.setattr(free_data, "MOST_KEPT", kept)
    start_trial(recorder, data="free", sites=(HERE,))
    (free, dataset, free_type, length), *free_state = seeded(run)
    assert faults(recorder) == []
    assert (free, free_type, length) == (plain, plain_type, 4)
    assert free_state == plain_state
    assert [len(steps) for steps in free] == [4, 4, 4]
    ahead = way.get("num_workers", 0) * way.get("prefetch_factor", 2)
    assert dataset.made.value <= min(14, 4 * (kept + ahead))
    recording = recorder.read()
    (switch,) = recording.of(Kind.FREE_DATA)
    assert switch.value == min(kept, 4)
    assert switch.text["dataset"] == "Counted"
    assert trial_note(recorder)["applied"] == {"data": "free"}
    nexts = recording.of(Kind.LOADER_NEXT)
    assert [event.value for event in nexts] == [1, 2, 3, 4] * 3
    assert len(recording.of(Kind.LOADER_END)) == 3


@pytest.mark.usefixtures("keep_two")
def test_workers_end_at_once_and_none_are_started(recorder: Recorder) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    loader = made(Counted(40), num_workers=2)
    running = iter(loader)
    workers = running._workers  # type: ignore[attr-defined]
    for _ in range(3):
        next(running)
    assert not any(worker.is_alive() for worker in workers)
    for _ in range(2):
        later = iter(loader)
        assert len(list(later)) == 10
        assert later._workers == []  # type: ignore[attr-defined]
    assert len(list(running)) == 7
    with pytest.raises(StopIteration):
        next(running)


@pytest.mark.usefixtures("keep_two")
@pytest.mark.parametrize("way", WAYS[:3])
def test_evaluation_by_the_same_loader_stays_real(recorder: Recorder, way: dict[str, Any]) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    loader = made(Counted(), **way)
    with torch.no_grad():
        first = [batch.tolist() for batch in loader]
    assert recorder.read().of(Kind.FREE_DATA) == []
    list(loader)
    with torch.inference_mode():
        assert [batch.tolist() for batch in loader] == first
    assert [batch.tolist() for batch in loader] == first[:2] * 2


def test_other_loaders_are_left_alone(recorder: Recorder) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    dataset = Counted()
    other = made_elsewhere(dataset)
    assert [len(list(other)) for _ in range(3)] == [4, 4, 4]
    assert dataset.made.value == 42
    end_of_process(recorder)
    assert list(trial_note(recorder)["refused"]) == ["data"]


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_asks_for_no_end_has_seen_a_whole_pass(
    recorder: Recorder, way: dict[str, Any]
) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    dataset = Counted()
    loader = made(dataset, **way)
    for _ in range(3):
        iterator = iter(loader)
        assert [len(next(iterator)) for _ in range(len(loader))] == [4, 4, 4, 2]
    (switch,) = recorder.read().of(Kind.FREE_DATA)
    assert (switch.value, dataset.made.value) == (4, 14)


@pytest.mark.usefixtures("keep_two")
def test_a_loader_rebuilt_for_each_epoch_goes_on_free(recorder: Recorder) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    dataset = Counted()
    for _ in range(3):
        loader = made(dataset, num_workers=1)
        assert len(list(zip(loader, loader, strict=True))) == 4  # two epochs at once
    assert dataset.made.value <= 28
    assert len(recorder.read().of(Kind.FREE_DATA)) == 1


# Datasets that tell the end of a pass themselves


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize(("kept", "asked", "length"), [(64, 99, 4), (2, 6, 6)])
def test_a_stream_is_as_long_as_its_first_whole_pass_else_as_it_is_told(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    way: dict[str, Any],
    kept: int,
    asked: int,
    length: int,
) -> None:
    monkeypatch.setattr(free_data, "MOST_KEPT", kept)
    start_trial(recorder, data="free", sites=(HERE,), epoch_batches=asked)
    loader = made(Stream(), **way)
    assert [len(list(loader)) for _ in range(3)] == [length] * 3


# How much is kept


@pytest.mark.parametrize(
    ("cache_bytes", "available_bytes", "kept"),
    [
        (1, 1 << 30, 8),  # always so many, for the shapes
        (16 * 8, 1 << 30, 17),  # more than twice the cache
        (1 << 30, 1 << 30, 64),
        (1 << 30, 4 * 16 * 5, 5),  # a quarter of the memory
        (1 << 30, 1, 1),
    ],
)
def test_how_many_are_kept(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    cache_bytes: int,
    available_bytes: int,
    kept: int,
) -> None:
    monkeypatch.setattr(free_data, "last_cache_bytes", lambda: cache_bytes)
    monkeypatch.setattr(free_data, "available_bytes", lambda: available_bytes)
    start_trial(recorder, data="free", sites=(HERE,))
    for _ in made(Counted(1000)):  # 16 bytes a batch
        pass
    (switch,) = recorder.read().of(Kind.FREE_DATA)
    assert switch.value == kept


# What may go wrong


def test_batches_that_cannot_be_copied_stay_real(recorder: Recorder) -> None:
    start_trial(recorder, data="free", sites=(HERE,))
    lock, dataset = threading.Lock(), Counted()
    loader = made(dataset, collate_fn=lambda samples: {"x": torch.stack(samples), "lock": lock})
    assert [len(list(loader)) for _ in range(2)] == [4, 4]
    assert dataset.made.value == 28
    assert "cannot be copied (TypeError: " in trial_note(recorder)["refused"]["data"]
    assert faults(recorder) == []


@pytest.mark.usefixtures("keep_two")
@pytest.mark.parametrize("way", [{}, {"num_workers": 1}])
def test_an_error_of_the_sampler_still_reaches_the_script(
    recorder: Recorder, way: dict[str, Any]
) -> None:
    class Breaking(Drawing):
        def __iter__(self) -> Iterator[int]:
            yield from range(12)
            raise KeyError("no more")

    start_trial(recorder, data="free", sites=(HERE,))
    loader = made(Counted(), sampler=Breaking(), **way)
    with pytest.raises(KeyError, match="no more"):
        list(loader)
    assert len(recorder.read().of(Kind.LOADER_NEXT)) <= 3
    assert faults(recorder) == []


@pytest.mark.frameworks("torchdata")
@pytest.mark.usefixtures("keep_two")
@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("way", WAYS[:3])
def test_torchdatas_loader_keeps_its_state(recorder: Recorder, way: dict[str, Any]) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful() -> Any:
        return StatefulDataLoader(Counted(40), batch_size=4, **way)

    start_trial(recorder, data="free", sites=(site_in(stateful),))
    loader = stateful()
    assert [sum(1 for _ in loader if loader.state_dict()) for _ in range(3)] == [10, 10, 10]
    # Its workers make what they were told to at the start of a pass, and no more.
    assert loader.dataset.made.value <= 4 * (2 + 3 * 2 * way.get("num_workers", 0))
    assert faults(recorder) == []


# Kept batches


Pair = namedtuple("Pair", "x y")


@dataclass
class Held:
    x: torch.Tensor
    names: list[str] = field(default_factory=lambda: ["a"])


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


@pytest.mark.parametrize(
    "batch",
    [
        ones(),
        [ones(), torch.zeros(0)],
        Pair(ones(), {"deep": (ones(),)}),
        UserDict(input_ids=ones()),
        Held(ones()),
        ["text", 3, None, b"bytes"],
        torch.ones(6, 4).t(),
        torch.ones(1, 3).expand(5, 3),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_copy_is_equal_and_of_the_same_types(batch: Any) -> None:
    kept = KeptBatch(batch, torch)
    assert described(kept.copy()) == described(kept.copy()) == described(batch)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int64, torch.complex64]
)
def test_large_tensors_are_kept_off_the_heap_of_the_script(dtype: torch.dtype) -> None:
    large = torch.arange(1 << 17).reshape(2, -1).to(dtype)
    small, nothing = torch.ones(3, dtype=dtype), torch.zeros(0, dtype=dtype)
    kept = KeptBatch([large, small, nothing], torch)
    # A mapping of its own begins at a page; of what malloc gives, one in 64 does by chance.
    assert kept.batch[0].data_ptr() % mmap.PAGESIZE == 0
    copies = kept.copy()
    assert all(map(torch.equal, copies, [large, small, nothing]))
    assert copies[0].data_ptr() not in (large.data_ptr(), kept.batch[0].data_ptr())


def described(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return (thing.dtype, thing.shape, thing.tolist())
    if isinstance(thing, (list, tuple)):
        return (type(thing), [described(part) for part in thing])
    if isinstance(thing, dict):
        return {key: described(value) for key, value in thing.items()}
    if hasattr(thing, "__dict__"):
        return (type(thing), described(vars(thing)))
    return thing


def test_copies_share_nothing_but_what_the_batch_shares_inside() -> None:
    whole, leaf, names = torch.arange(6.0), torch.ones(2, requires_grad=True), ["a"]
    batch = [whole[:3], whole[3:], whole, whole, leaf, names]
    kept = KeptBatch(batch, torch)
    for given in (batch, kept.copy()):
        given[2].zero_()
        given[5].clear()
    first, *_, last, names = kept.copy()
    assert (first.tolist(), names) == ([0, 1, 2], ["a"])
    assert last.requires_grad
    assert last is not leaf
    views = kept.copy()
    views[2].zero_()
    assert [part.sum().item() for part in views[:4]] == [0, 0, 0, 0]
    assert views[2] is views[3]


def test_available_memory_of_a_machine_and_a_container(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  900 kB\nMemFree:  10 kB\nMemAvailable:     400 kB\n")
    nothing = str(tmp_path / "nothing")
    assert available_bytes(str(path), nothing) == 400 << 10
    assert available_bytes(nothing, nothing) == DEFAULT_AVAILABLE_BYTES
    (tmp_path / "memory.current").write_text("5000\n")
    for most, available in (("9000\n", 4000), ("4500\n", 0), ("max\n", 400 << 10)):
        (tmp_path / "memory.max").write_text(most)
        assert available_bytes(str(path), str(tmp_path)) == available
