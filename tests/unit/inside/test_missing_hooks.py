"""A torch that lacks a hook point, or has it with other parameters: all else is recorded."""

from __future__ import annotations

import functools
import gc
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, Recording
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as loaders
from torch.utils.data._utils import fetch as fetchers
from torch.utils.data._utils import pin_memory as pinning
from torch.utils.data._utils import worker

from trainprof.inside.catalogue import default_probes
from trainprof.record.schema import Kind, Topic

# The hook points by probe, and the kinds of record that go with each.
POINTS: list[tuple[str, Any, str, set[Kind]]] = [
    ("loader", loaders._BaseDataLoaderIter, "__next__", {Kind.LOADER_NEXT, Kind.LOADER_END}),
    ("loader", loaders._MultiProcessingDataLoaderIter, "_next_index", {Kind.SAMPLER}),
    ("loader", loaders._MultiProcessingDataLoaderIter, "_shutdown_workers", set()),
    ("loader", loaders.DataLoader, "__setattr__", set()),
    ("fetch", fetchers._MapDatasetFetcher, "fetch", {Kind.FETCH}),
    ("fetch", fetchers._IterableDatasetFetcher, "fetch", set()),
    ("delivery", loaders._MultiProcessingDataLoaderIter, "_next_data", set()),
    ("delivery", loaders._MultiProcessingDataLoaderIter, "_try_get_data", set()),
    ("delivery", pinning, "pin_memory", set()),
    *(("transfer", torch.Tensor, name, set()) for name in ("to", "cuda", "cpu", "copy_")),
    ("transfer", nn.Module, "_apply", {Kind.PLACEMENT}),
    ("forward", nn.Module, "__call__", {Kind.FORWARD}),
    ("backward", torch.autograd, "_engine_run_backward", {Kind.BACKWARD}),
    ("optimizer", torch.optim.Optimizer, "profile_hook_step", {Kind.OPTIMIZER_STEP}),
    ("optimizer", torch.optim.Optimizer, "zero_grad", {Kind.ZERO_GRAD}),
    ("optimizer", nn.Module, "zero_grad", set()),
    ("optimizer", torch.amp.GradScaler, "step", {Kind.SCALER_STEP}),
    ("optimizer", torch.amp.GradScaler, "unscale_", set()),
    ("optimizer", torch.amp.GradScaler, "update", set()),
    ("optimizer", nn.utils, "clip_grad_norm_", {Kind.CLIP_GRADIENTS}),
    ("optimizer", nn.utils, "clip_grad_value_", set()),
    ("optimizer", torch.optim.lr_scheduler.LRScheduler, "step", {Kind.SCHEDULER_STEP}),
    *(
        ("sync", torch.Tensor, name, {Kind.SYNC} if name == "item" else set())
        for name in (
            *("item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__"),
            "__index__",
        )
    ),
    ("sync", torch.cuda, "synchronize", set()),
    ("sync", torch.accelerator, "synchronize", set()),
    ("sync", torch.xpu, "synchronize", set()),
    ("optimizer", torch.optim.Optimizer, "add_param_group", set()),
    ("checkpoint", torch, "save", {Kind.CHECKPOINT_SAVE}),
    ("checkpoint", torch, "load", {Kind.CHECKPOINT_LOAD}),
    ("warnings", warnings, "_showwarnmsg", set()),
]
# With the hook point that a probe needs most, other kinds go too: they are attached after it.
BEHIND: dict[tuple[str, str], set[Kind]] = {
    ("loader", "__next__"): {Kind.LOADER_INIT, Kind.LOADER_RESET, Kind.SAMPLER},
    ("forward", "__call__"): {Kind.LOSS},
    ("optimizer", "profile_hook_step"): {
        *(Kind.ZERO_GRAD, Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.CLIP_GRADIENTS),
        Kind.SCHEDULER_STEP,
    },
    ("checkpoint", "save"): {Kind.CHECKPOINT_LOAD},
}
ALL = {
    *(Kind.LOADER_INIT, Kind.LOADER_NEXT, Kind.LOADER_END, Kind.SAMPLER, Kind.FETCH),
    *(Kind.PLACEMENT, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.OPTIMIZER_STEP),
    *(Kind.ZERO_GRAD, Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.CLIP_GRADIENTS),
    *(Kind.SCHEDULER_STEP, Kind.SYNC, Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD),
}


def train(directory: Path, **options: Any) -> list[float]:
    """Passes every hook point that ALL needs; returns the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    data = TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))
    losses = []
    for x, y in DataLoader(data, batch_size=4, **options):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())
    torch.save(model.state_dict(), directory / "model.pt")
    model.load_state_dict(torch.load(directory / "model.pt"))
    return losses


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_not_looked_at_again() -> Iterator[None]:
    """A collection that walks over all of torch takes as long as a training here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@functools.cache
def usual_losses() -> list[float]:
    """What the training comes to without probes."""
    with tempfile.TemporaryDirectory() as directory:
        return train(Path(directory))


def trained_without(
    recorder: Recorder, directory: Path, take_away: Callable[[pytest.MonkeyPatch], None]
) -> Recording:
    """Trains under probes that were attached while `take_away` had been done to torch."""
    gc.collect()  # other tests' heirs of torch's classes, which the probes would hook too
    losses = usual_losses()
    with pytest.MonkeyPatch.context() as patched:
        take_away(patched)
        log = recorder.start(*default_probes()).log
    assert train(directory) == losses
    # A forked child writes a log of its own, which bootstrap sees to.
    apart = {"num_workers": 1, "worker_init_fn": lambda number: log.reopen_in_child()}
    assert train(directory, **apart) == losses
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return recording


def recorded(recording: Recording) -> set[Kind]:
    return {event.kind for event in recording.events} & ALL


def test_the_training_here_passes_every_hook_point(recorder: Recorder, tmp_path: Path) -> None:
    recording = trained_without(recorder, tmp_path, lambda patched: None)
    assert recorded(recording) == ALL
    assert recording.notes(Topic.PROBE_UNAVAILABLE) == []


@pytest.mark.parametrize(
    ("probe", "owner", "name", "kinds"), [pytest.param(*p, id=f"{p[0]}-{p[2]}") for p in POINTS]
)
def test_the_loss_of_a_hook_point_is_noted_and_the_others_work(
    recorder: Recorder, tmp_path: Path, probe: str, owner: Any, name: str, kinds: set[Kind]
) -> None:
    recording = trained_without(recorder, tmp_path, lambda torch: torch.setattr(owner, name, None))
    notes = recording.notes(Topic.PROBE_UNAVAILABLE)
    assert {note["probe"] for note in notes} == {probe}
    assert all(name in note["reason"] for note in notes)
    assert recorded(recording) == ALL - kinds - BEHIND.get((probe, name), set())


# What torch imports as a part of `import torch`, and its parts that a probe looks into.
LOOK_AT_GRAPHS = {"padding", "embedding_tables", "gradient_use", "gradient_syncs"}
PARTS: list[tuple[set[str], Any, str]] = [
    ({"loader", "delivery"}, loaders, "_BaseDataLoaderIter"),
    ({"fetch"}, fetchers, "_MapDatasetFetcher"),
    ({"fetch"}, fetchers, "_IterableDatasetFetcher"),
    ({"fetch"}, worker, "_worker_info"),
    ({"optimizer"}, torch.amp, "GradScaler"),
    ({"optimizer"}, torch.optim.lr_scheduler, "LRScheduler"),
    ({"optimizer"}, torch, "optim"),
    ({"backward"}, torch.autograd, "graph"),
    ({"checkpoint"}, torch, "serialization"),
    (set(), torch, "accelerator"),
    (set(), torch, "xpu"),
    (set(), nn.functional, "gaussian_nll_loss"),
    ({"sync"}, torch, "cuda"),
    ({"transfer", "sync", "backward_code", *LOOK_AT_GRAPHS}, torch, "Tensor"),
    (LOOK_AT_GRAPHS, torch._C, "DisableTorchFunction"),
    ({"forward", "optimizer", "transfer", "backward_code"}, nn, "Module"),
    # Modules that are not loaded.
    ({"loader", "delivery"}, None, "torch.utils.data.dataloader"),
    ({"fetch"}, None, "torch.utils.data._utils.fetch"),
    ({"fetch"}, None, "torch.utils.data._utils.worker"),
    ({"optimizer"}, None, "torch.optim.optimizer"),
]


@pytest.mark.parametrize(("probes", "owner", "name"), PARTS, ids=[name for *_, name in PARTS])
def test_a_part_of_torch_taken_away_costs_its_probes_alone(
    recorder: Recorder, tmp_path: Path, probes: set[str], owner: Any, name: str
) -> None:
    def take_away(torch: pytest.MonkeyPatch) -> None:
        if owner is None:
            torch.delitem(sys.modules, name)
        else:
            torch.delattr(owner, name)

    notes = trained_without(recorder, tmp_path, take_away).notes(Topic.PROBE_UNAVAILABLE)
    assert {note["probe"] for note in notes} == probes
    assert owner is not None or all(name in note["reason"] for note in notes)


def widened(original: Callable[..., Any]) -> Callable[..., Any]:
    """As a later torch might have it: a further parameter, which torch itself passes."""

    def method(self: Any, first: Any = None, second: Any = None, *, further: int = 0) -> Any:
        arguments = [value for value in (first, second) if value is not None]
        return original(self, *arguments)

    return method


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (loaders._BaseDataLoaderIter, "__next__"),
        (loaders._MultiProcessingDataLoaderIter, "_next_index"),
        (loaders.DataLoader, "__setattr__"),
        (torch.optim.Optimizer, "profile_hook_step"),
        (warnings, "_showwarnmsg"),
    ],
)
def test_other_parameters_are_told_and_left_alone(
    recorder: Recorder, tmp_path: Path, owner: Any, name: str
) -> None:
    change = widened(getattr(owner, name))
    recording = trained_without(
        recorder, tmp_path, lambda patched: patched.setattr(owner, name, change)
    )
    [note] = recording.notes(Topic.PROBE_UNAVAILABLE)
    assert note["reason"].endswith(f"{name} has other parameters")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (fetchers._MapDatasetFetcher, "fetch"),
        (nn.Module, "__call__"),
        (nn.Module, "_apply"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.amp.GradScaler, "step"),
        (torch.amp.GradScaler, "update"),
        (torch.optim.lr_scheduler.StepLR, "step"),
    ],
)
def test_a_further_parameter_reaches_torch(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    reached = []

    def method(self: Any, *arguments: Any, further: int = 0) -> None:
        reached.append((self, arguments, further))

    monkeypatch.setattr(owner, name, method)
    recorder.start(*default_probes())
    target = owner.__new__(owner)
    assert getattr(owner, name)(target, 1, further=2) is None
    recorder.stop()
    assert reached == [(target, (1,), 2)]
