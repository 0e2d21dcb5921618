"""Models whose gradients are averaged after each of several batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsProbe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

UPDATES = 30
CLOCK = FakeClock()
Update = Callable[[Any, torch.optim.Optimizer], None]


@pytest.fixture
def parallel(group: None) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))


def train(
    recorder: Recorder, model: nn.Module, update: Update, updates: int = UPDATES
) -> list[dict[str, Any]]:
    spans = ForwardProbe(), BackwardProbe(), OptimizerProbe()
    recorder.start(GradientSyncsProbe(), *spans, now=CLOCK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(updates):
        update(model, optimizer)
        CLOCK.advance(1_000_000_000)
    recorder.session.on_end()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "gradient_syncs" in x]
    return notes[-1]["gradient_syncs"] if notes else []


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 8)).square().mean()  # type: ignore[no-any-return]


def averages_each(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(4):
        loss_of(model).backward()
    optimizer.step()


@pytest.mark.parametrize("updates", [UPDATES, 10 * UPDATES])
def test_gradients_that_are_averaged_after_each_batch(
    recorder: Recorder, parallel: DistributedDataParallel, updates: int
) -> None:
    [note] = train(recorder, parallel, averages_each, updates)
    assert note["batches"] == pytest.approx(4, abs=0.1)


def averages_the_last(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for number in range(4):
        with model.no_sync() if number < 3 else nullcontext():
            loss_of(model).backward()
    optimizer.step()


def adds_up_losses(model: Any, optimizer: torch.optim.Optimizer, *, is_reset: bool = True) -> None:
    """Four calls, and one pass for all of them; else those of all updates so far."""
    if is_reset:
        optimizer.zero_grad()
    sum(loss_of(model) for _ in range(4)).backward()
    optimizer.step()


def takes_gradients_away(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """To put those of several tasks together by their directions."""
    kept = []
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        kept.append([p.grad.clone() for p in model.parameters()])
    for p, first, second in zip(model.parameters(), *kept, strict=True):
        p.grad = first + second
    optimizer.step()


def resets_before_each(model: Any, optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        optimizer.zero_grad(set_to_none=times == 1)
        loss_of(model).backward()
    optimizer.step()


def climbs_first(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """As sharpness-aware minimization does: the second pass is of other weights."""
    loss_of(model).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=0.1)
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "update",
    [
        *(averages_the_last, takes_gradients_away, climbs_first),
        *(adds_up_losses, partial(adds_up_losses, is_reset=False)),
        *(partial(resets_before_each, times=times) for times in (1, 2)),
    ],
)
def test_what_averages_once_or_needs_to_average_is_not_noted(
    recorder: Recorder, parallel: DistributedDataParallel, update: Update
) -> None:
    assert train(recorder, parallel, update) == []


def test_averaging_by_the_script_itself(
    recorder: Recorder, parallel: DistributedDataParallel
) -> None:
    parallel.register_comm_hook(None, fp16_compress_hook)
    assert train(recorder, parallel, averages_each) == []


def test_a_model_of_one_process_averages_nothing(recorder: Recorder) -> None:
    assert train(recorder, nn.Linear(8, 1), averages_each) == []
