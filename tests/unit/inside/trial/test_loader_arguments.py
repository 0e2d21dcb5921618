"""What a trial makes of the arguments of loaders."""

from __future__ import annotations

import copy
import gc
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.bare_call import by_python_itself
from support.package import PACKAGE
from support.session import Recorder
from support.trials import end_of_process, faults, site_in, start_trial, told
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from trainprof.inside.catalogue import default_probes
from trainprof.inside.trial.loader_arguments import NonBlockingProbe, together, without_waiting
from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Topic


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
PLAIN = SimpleNamespace(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
WITH_WORKERS = SimpleNamespace(
    num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=30
)


@pytest.mark.parametrize(
    ("asked", "loader", "values", "refused"),
    [
        ({"num_workers": 3}, PLAIN, {"num_workers": 3, "prefetch_factor": 2}, []),
        (
            {"num_workers": 0},
            WITH_WORKERS,
            {
                "num_workers": 0,
                "prefetch_factor": None,
                "persistent_workers": False,
                "multiprocessing_context": None,
                "timeout": 0,
            },
            [],
        ),
        ({"prefetch_factor": 8}, WITH_WORKERS, {"prefetch_factor": 8}, []),
        ({"prefetch_factor": 8}, PLAIN, {}, ["prefetch_factor"]),
        ({"persistent_workers": True}, PLAIN, {}, ["persistent_workers"]),
        ({"persistent_workers": False}, PLAIN, {}, []),
        ({"multiprocessing_context": "spawn"}, PLAIN, {}, ["multiprocessing_context"]),
        (
            {"num_workers": 1, "multiprocessing_context": "spawn"},
            PLAIN,
            {"num_workers": 1, "prefetch_factor": 2, "multiprocessing_context": "spawn"},
            [],
        ),
    ],
)
def test_arguments_fit_together(
    asked: dict[str, Any], loader: Any, values: dict[str, Any], refused: list[str]
) -> None:
    found, why_not = together(asked, loader)
    assert (found, sorted(why_not)) == (values, refused)


def test_a_loader_is_changed_as_it_is_first_iterated(recorder: Recorder) -> None:
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    loader, other = made(), made_elsewhere()
    assert loader.num_workers == 0
    for _ in range(2):
        assert len(list(loader)) == len(list(other)) == 3
    assert {name: getattr(loader, name) for name in MATCHING} == MATCHING
    assert other.num_workers == 0
    facts = recorder.read().notes(Topic.LOADER)
    assert [(f["num_workers"], f["prefetch_factor"]) for f in facts] == [(1, 3), (0, None)]
    assert told(recorder)["applied"] == MATCHING
    assert (told(recorder)["refused"], faults(recorder)) == ({}, [])


def test_lines_are_named_as_seen_from_where_the_run_was_started(recorder: Recorder) -> None:
    """A script that is started by another one (cd src && python train.py) began elsewhere."""
    above, here = os.path.split(os.getcwd())
    trial = TrialOptions(loaders={"num_workers": 1}, sites=(f"{here}/{HERE}",)).to_json()
    recorder.start(*default_probes(trial), options={"trial": trial, "cwd": above})
    loader = made()
    assert len(list(loader)) == 3
    assert loader.num_workers == 1
    assert told(recorder)["applied"] == {"num_workers": 1}


def test_where_nobody_knows_where_that_was_they_are_whole_paths(recorder: Recorder) -> None:
    site = os.path.join(os.getcwd(), HERE)
    trial = TrialOptions(loaders={"num_workers": 1}, sites=(site,)).to_json()
    recorder.start(*default_probes(trial), options={"trial": trial, "cwd": None})
    list(loader := made())
    assert loader.num_workers == 1


def test_loaders_of_several_lines_get_what_is_asked_for_theirs(recorder: Recorder) -> None:
    there = site_in(made_elsewhere)
    asked = {"num_workers": {HERE: 2, there: 1}, "persistent_workers": {there: True}}
    start_trial(recorder, loaders=asked, sites=(HERE, there))
    loader, other = made(), made_elsewhere()
    assert len(list(loader)) == len(list(other)) == 3
    assert (loader.num_workers, loader.persistent_workers) == (2, False)
    assert (other.num_workers, other.persistent_workers) == (1, True)
    end_of_process(recorder)
    assert told(recorder)["applied"] == asked
    assert (told(recorder)["refused"], faults(recorder)) == ({}, [])


def test_without_lines_no_loader_is_changed_and_that_is_said(recorder: Recorder) -> None:
    start_trial(recorder, loaders={"num_workers": 1})
    loader = made()
    list(loader)
    end_of_process(recorder)
    assert loader.num_workers == 0
    assert list(told(recorder)["refused"]) == ["num_workers"]


def test_workers_are_taken_away(recorder: Recorder) -> None:
    start_trial(recorder, loaders={"num_workers": 0}, sites=(HERE,))
    loader = made(
        num_workers=2, persistent_workers=True, multiprocessing_context="spawn", timeout=30
    )
    assert len(list(loader)) == 3
    assert type(iter(loader)).__name__ == "_SingleProcessDataLoaderIter"
    assert loader.multiprocessing_context is None
    assert told(recorder)["applied"] == {"num_workers": 0}


def test_the_start_method_is_changed(recorder: Recorder) -> None:
    asked = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    start_trial(recorder, loaders=asked, sites=(HERE,))
    loader = made()
    iter(loader)
    (facts,) = recorder.read().notes(Topic.LOADER)
    assert facts["start_method"] == "forkserver"


def test_one_that_torch_does_not_know_is_refused(recorder: Recorder) -> None:
    asked = {"num_workers": 1, "multiprocessing_context": "teleport"}
    start_trial(recorder, loaders=asked, sites=(HERE,))
    loader = made()
    assert len(list(loader)) == 3
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)
    assert set(told(recorder)["refused"]) == set(asked)
    assert told(recorder)["applied"] == {}


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
    assert set(told(recorder)["refused"]) == set(asked)
    assert "had been started" in told(recorder)["refused"]["num_workers"]


def test_a_copy_of_a_changed_loader_is_built_like_it(recorder: Recorder) -> None:
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    loader = made()
    first = [batch.tolist() for batch in loader]
    loader._iterator = None
    again = copy.copy(loader)
    assert [batch.tolist() for batch in again] == first


def test_pinned_memory_is_refused_without_an_accelerator(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainprof.inside.trial.loader_arguments._has_accelerator", lambda torch: False
    )
    start_trial(recorder, loaders={"pin_memory": True, "num_workers": 1}, sites=(HERE,))
    loader = made()
    list(loader)  # torch would warn, and warnings are errors here
    assert (loader.pin_memory, loader.num_workers) == (False, 1)
    assert told(recorder)["applied"] == {"num_workers": 1}
    assert "no accelerator" in told(recorder)["refused"]["pin_memory"]


def test_pinned_memory_is_asked_for_where_there_is_one(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainprof.inside.trial.loader_arguments._has_accelerator", lambda torch: True
    )
    start_trial(recorder, loaders={"pin_memory": True}, sites=(HERE,))
    loader = made()
    with warnings.catch_warnings():  # there may be none
        warnings.simplefilter("ignore")
        iter(loader)
    assert loader.pin_memory


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_looks_the_same(
    recorder: Recorder, same_with_us: Callable[..., Any], workers: int
) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise KeyError(f"sample {index}")

    def failing() -> Any:
        return list(DataLoader(Broken(), num_workers=workers))

    trial = TrialOptions(loaders={"prefetch_factor": 4}, sites=(site_in(failing),)).to_json()
    kind, text = same_with_us(failing, *default_probes(trial))
    assert kind == "raised"
    assert PACKAGE not in text


def test_a_fault_of_ours_is_reported_and_the_loader_stays(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("trainprof.inside.trial.loader_arguments.together", broken)
    start_trial(recorder, loaders={"num_workers": 1}, sites=(HERE,))
    loader = made()
    assert len(list(loader)) == 3
    assert loader.num_workers == 0
    assert faults(recorder) == [{"probe": "trial_loaders", "error": "ZeroDivisionError: ours"}]


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
    assert "saved state" in told(recorder)["refused"]["num_workers"]


# Copies


@pytest.mark.parametrize(
    ("given", "became"),
    [
        ((("x", "gpu"), {}), (("x", "gpu"), {"non_blocking": True})),
        ((("x", "gpu"), {"non_blocking": False}), (("x", "gpu"), {"non_blocking": True})),
        ((("x", "gpu", False), {}), (("x", "gpu", True), {})),
        ((("x", "gpu", None, False, True), {}), (("x", "gpu", None, True, True), {})),
    ],
)
def test_a_call_that_does_not_wait(given: Any, became: Any) -> None:
    assert without_waiting(*given) == became


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
    pinned.to(device="fakegpu")
    pinned.to("cpu")
    pinned.to(torch.float64)
    waits = [not call[-1].get("non_blocking") for call in seen]
    assert waits == [True, False, False, False, False, True, True]


class Passing(TorchDispatchMode):
    """A mode of the script's that counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_of_the_scripts_is_asked_nothing(seen: list[Any]) -> None:
    pinned = torch.ones(2)
    with Passing() as mode:
        pinned.to("fakegpu")
    pinned.to("fakegpu")
    assert [name for name in mode.names if "_to_copy" not in name] == []
    assert [bool(call[-1].get("non_blocking")) for call in seen] == [False, True]


def test_a_loader_may_be_iterated_by_python_itself(recorder: Recorder) -> None:
    start_trial(recorder, loaders={"prefetch_factor": 3}, sites=(HERE,))
    assert by_python_itself(made().__iter__) == []
    assert faults(recorder) == []


def orders(loader: DataLoader[torch.Tensor], passes: int = 3) -> list[list[int]]:
    """Returns the samples of each pass, in order, and draws besides as a model would."""
    torch.manual_seed(7)
    found = []
    for _ in range(passes):
        found.append([int(one) for batch in loader for one in batch])
        torch.rand(3)
    return found


def test_workers_that_are_made_to_live_on_leave_shuffling_as_it_is(recorder: Recorder) -> None:
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    plain = orders(made_elsewhere(shuffle=True))
    loader = made(shuffle=True)
    assert orders(loader) == plain
    assert loader.persistent_workers
    # Of a generator of its own it draws there.
    own = [torch.Generator().manual_seed(3) for _ in range(2)]
    plain = orders(made_elsewhere(shuffle=True, generator=own[0]))
    assert orders(made(shuffle=True, generator=own[1])) == plain
    assert faults(recorder) == []


def test_workers_that_live_on_by_the_script_draw_as_they_did(recorder: Recorder) -> None:
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "persistent_workers": True}
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    assert orders(made(**options)) == orders(made_elsewhere(**options))
    assert faults(recorder) == []


def test_an_iterator_of_workers_that_live_on_is_not_kept(recorder: Recorder) -> None:
    start_trial(recorder, loaders=MATCHING, sites=(HERE,))
    loader = made(shuffle=True)
    list(loader)
    iterator = weakref.ref(vars(loader)["_iterator"])
    assert iterator() is not None
    gc.disable()
    try:
        del loader
        assert iterator() is None
    finally:
        gc.enable()
