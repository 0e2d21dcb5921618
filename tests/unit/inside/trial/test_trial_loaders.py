"""Loaders in a trial: with other arguments, with copies that do not wait, and alone."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import fake_device
from support.session import Recorder
from support.trials import end_of_process, faults, site_in, start_trial, trial_note
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from trainprof.inside.limits.limit import RunLimitReached
from trainprof.inside.trial.loaders import NonBlockingProbe
from trainprof.record.schema import Kind, Topic


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def made(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=2, **options)


def made_elsewhere(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=2, **options)


HERE = site_in(made)
MATCHING = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True}


def test_loaders_are_changed_as_they_are_first_iterated(recorder: Recorder) -> None:
    there = site_in(made_elsewhere)
    asked = {"num_workers": {HERE: 2, there: 1}, "persistent_workers": {there: True}}
    asked |= {"multiprocessing_context": {there: "forkserver"}, "prefetch_factor": 3}
    start_trial(recorder, loaders=asked, sites=(HERE, there))
    loader, other, untouched = made(), made_elsewhere(), DataLoader(Numbers(), batch_size=2)
    assert loader.num_workers == 0
    for _ in range(2):
        assert len(list(loader)) == len(list(other)) == len(list(untouched)) == 3
    loaders = (loader, other, untouched)
    assert [x.num_workers for x in loaders] == [2, 1, 0]
    assert [x.persistent_workers for x in loaders] == [False, True, False]
    notes = recorder.read().notes(Topic.LOADER)
    settings = [(note["num_workers"], note["prefetch_factor"]) for note in notes]
    assert settings == [(2, 3), (1, 3), (0, None)]
    assert notes[1]["start_method"] == "forkserver"
    end_of_process(recorder)
    assert trial_note(recorder)["applied"] == asked
    assert (trial_note(recorder)["refused"], faults(recorder)) == ({}, [])


@pytest.mark.parametrize(
    ("asked", "sites"),
    [
        ({"num_workers": 1}, ()),
        ({"num_workers": 1, "multiprocessing_context": "teleport"}, (HERE,)),
        # There are no workers.
        ({"prefetch_factor": 8}, (HERE,)),
        ({"persistent_workers": True, "multiprocessing_context": "spawn"}, (HERE,)),
    ],
)
def test_a_loader_of_no_line_or_with_what_torch_does_not_know_stays(
    recorder: Recorder, asked: dict[str, Any], sites: tuple[str, ...]
) -> None:
    start_trial(recorder, loaders=asked, sites=sites)
    loader = made()
    assert len(list(loader)) == 3
    end_of_process(recorder)
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)
    assert trial_note(recorder)["applied"] == {}
    assert set(trial_note(recorder)["refused"]) == set(asked)


@pytest.mark.parametrize("is_there", [False, True])
def test_memory_is_pinned_where_there_is_an_accelerator(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    place = "trainprof.inside.trial.loaders._has_accelerator"
    monkeypatch.setattr(place, lambda torch: is_there)
    start_trial(recorder, loaders={"pin_memory": True, "num_workers": 1}, sites=(HERE,))
    loader = made()
    with warnings.catch_warnings():
        if is_there:  # it may not be; without the setting torch may not warn
            warnings.simplefilter("ignore")
        iter(loader)
    assert (loader.pin_memory, loader.num_workers) == (is_there, 1)
    assert ("pin_memory" in trial_note(recorder)["refused"]) is not is_there


def test_workers_are_taken_away(recorder: Recorder) -> None:
    start_trial(recorder, loaders={"num_workers": 0}, sites=(HERE,))
    loader = made(
        num_workers=2, persistent_workers=True, multiprocessing_context="spawn", timeout=30
    )
    assert len(list(loader)) == 3
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"
    settings = loader.multiprocessing_context, loader.prefetch_factor, loader.timeout
    assert settings == (None, None, 0)
    assert trial_note(recorder)["applied"] == {"num_workers": 0}


class Repeating(DataLoader[torch.Tensor]):
    """As some image libraries keep their workers: the iterator is made with the loader."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Numbers(), batch_size=2, **options)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        for _ in range(3):
            yield next(self.iterator)


class Around(DataLoader[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        own = self._get_iterator()
        yield from own


def test_classes_with_an_iter_of_their_own(recorder: Recorder) -> None:
    def loaders() -> list[DataLoader[torch.Tensor]]:
        return [Repeating(), Around(Numbers(), batch_size=2), Later(Numbers(), batch_size=2)]

    start_trial(recorder, loaders={"num_workers": 1}, sites=(site_in(loaders),))

    class Later(DataLoader[torch.Tensor]):
        def __iter__(self) -> Any:
            assert self.num_workers == 1  # by now
            return super().__iter__()

    for loader in loaders():
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        assert loader.num_workers == 1


def test_a_loader_with_living_workers_is_left_alone(recorder: Recorder) -> None:
    loader = made(num_workers=1, persistent_workers=True)
    list(loader)
    asked = {"num_workers": 2, "prefetch_factor": 5}
    before = sys._getframe().f_lineno
    start_trial(recorder, loaders=asked, sites=(f"{HERE.rsplit(':', 1)[0]}:{before + 2}",))
    list(loader)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 2)
    assert set(trial_note(recorder)["refused"]) == set(asked)
    assert "already started" in trial_note(recorder)["refused"]["num_workers"]


@pytest.mark.frameworks("torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_torchdatas_loader_is_changed_too(recorder: Recorder) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful(**options: Any) -> Any:
        return StatefulDataLoader(Numbers(), batch_size=2, **options)

    start_trial(recorder, loaders={"num_workers": 1}, sites=(site_in(stateful),))
    loader = stateful()
    state = loader.state_dict()  # makes the first iterator
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert loader.num_workers == 1
    resumed = stateful(num_workers=1)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 3
    assert "saved state" in trial_note(recorder)["refused"]["num_workers"]


# Copies


@pytest.fixture
def seen(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What `to` was called with behind the probe; every tensor is pinned whose first value is 1."""
    fake_device.register()
    calls: list[Any] = []
    plain_to = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append((*args, kwargs))
        return plain_to(tensor, *args, **kwargs)

    def is_pinned(tensor: torch.Tensor) -> bool:
        return float(tensor.reshape(-1)[0]) == 1

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "to", to)
        patched.setattr(torch.Tensor, "is_pinned", is_pinned, raising=False)
        probe = NonBlockingProbe()
        probe.plain_types.add(fake_device.FakeTensor)
        recorder.start(probe)
        yield calls
        recorder.stop()


def test_only_copies_of_pinned_tensors_to_a_device_stop_waiting(seen: list[Any]) -> None:
    pinned, pageable = torch.ones(2), torch.zeros(2)
    on_device = pageable.to("fakegpu")
    pinned.to("fakegpu")
    pinned.to(torch.device("fakegpu"), torch.float16)
    pinned.to(on_device)
    pinned.to(device="fakegpu", non_blocking=False)
    pinned.to("fakegpu", None, False, True)
    pinned.to("cpu")
    pinned.to(torch.float64)
    waits = [not (call[-1].get("non_blocking") or True in call[:3]) for call in seen]
    assert waits == [True, False, False, False, False, False, True, True]
    assert seen[5] == ("fakegpu", None, True, True, {})


def test_a_dispatch_mode_of_the_scripts_is_asked_nothing(seen: list[Any]) -> None:
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            assert "_to_copy" in str(func)
            return func(*args, **(kwargs or {}))

    pinned = torch.ones(2)
    with Passing():
        pinned.to("fakegpu")
    pinned.to("fakegpu")
    assert [bool(call[-1].get("non_blocking")) for call in seen] == [False, True]


def orders(loader: DataLoader[torch.Tensor], epochs: int = 3) -> list[list[int]]:
    """Returns the samples of each epoch, in order, and draws besides as a model would."""
    torch.manual_seed(7)
    samples = []
    for _ in range(epochs):
        samples.append([int(sample) for batch in loader for sample in batch])
        torch.rand(3)
    return samples


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_persistent_workers_leave_shuffling_as_it_is(
    recorder: Recorder, is_own: bool, is_persistent: bool
) -> None:
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    workers = {"num_workers": 1, "persistent_workers": True} if is_persistent else {}

    def options() -> dict[str, Any]:
        generator = torch.Generator().manual_seed(3) if is_own else None
        return {"shuffle": True, "generator": generator, **workers}

    plain, loader = orders(made_elsewhere(**options())), made(**options())
    assert orders(loader) == plain
    assert faults(recorder) == []


# A loader alone: batches back to back, then the run ends as --max-steps ends it


@pytest.mark.parametrize(
    "way", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
@pytest.mark.parametrize(("asked", "passes"), [(2, [2]), (3, [3]), (7, [3, 3, 1]), (None, [3])])
def test_so_many_batches_and_the_end(
    recorder: Recorder, way: dict[str, Any], asked: int | None, passes: list[int]
) -> None:
    start_trial(recorder, data="alone", batches=asked, sites=(HERE,))
    with pytest.raises(RunLimitReached) as reached:
        next(iter(made(**way)))
    assert reached.value.code == 0
    recording = recorder.read()
    batches = [event.value for event in recording.of(Kind.LOADER_NEXT)]
    assert batches == [number + 1 for count in passes for number in range(count)]
    assert recording.of(Kind.LIMIT)[0].value == 3
    assert trial_note(recorder)["applied"] == {"data": "alone"}
    assert faults(recorder) == []


def test_evaluation_and_other_loaders_go_on(recorder: Recorder) -> None:
    start_trial(recorder, data="alone", batches=2, sites=(HERE,))
    loader = made()
    with torch.no_grad():
        assert len(list(loader)) == 3
    assert len(list(made_elsewhere())) == 3
    with pytest.raises(RunLimitReached):
        list(loader)


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise KeyError("sample")


@pytest.mark.parametrize(
    ("dataset", "batch_size", "error"),
    [(Numbers(), 100, RunLimitReached), (Broken(), 1, KeyError)],  # the first has no batch
)
def test_an_empty_loader_ends_the_run_and_errors_are_the_scripts(
    recorder: Recorder, dataset: Any, batch_size: int, error: type[BaseException]
) -> None:
    def loader() -> Any:
        return DataLoader(dataset, batch_size, drop_last=True)

    start_trial(recorder, data="alone", batches=5, sites=(site_in(loader),))
    with pytest.raises(error):
        list(loader())
    assert faults(recorder) == []
