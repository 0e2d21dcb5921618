"""Which calls without gradients are told to repeat what was computed, and which are not."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.unused_forwards import UnusedForwardsProbe
from trainprof.record.schema import Topic

STEPS = 80
CLOCK = FakeClock()
Beside = Callable[[int, nn.Module, torch.Tensor], None]
ALL = torch.randn(64, 8)


class Slow(nn.Linear):
    """Takes half a second of the fake clock."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(500_000_000)
        return super().forward(inputs)


def told(recorder: Recorder) -> list[dict[str, Any]]:
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "repeated_forwards" in x]
    found: list[dict[str, Any]] = notes[-1]["repeated_forwards"] if notes else []
    return found


def start(recorder: Recorder) -> None:
    probes = [UnusedForwardsProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe()]
    recorder.start(*probes, now=CLOCK)


def fresh() -> Iterator[torch.Tensor]:
    while True:
        yield torch.randn(4, 8)


def slices() -> Iterator[torch.Tensor]:
    """Batches of one tensor."""
    while True:
        for first in range(0, 64, 4):
            yield ALL[first : first + 4]


def train(
    beside: Beside, batches: Iterator[torch.Tensor], *, ahead: Beside | None = None
) -> list[float]:
    model = nn.Sequential(Slow(8, 8))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for step in range(STEPS):
        inputs = next(batches)
        if ahead is not None:
            ahead(step, model, inputs)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        beside(step, model, inputs)
        losses.append(loss.item())
        CLOCK.advance(1_000_000_000)
    return losses


@torch.no_grad()
def accuracy(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    model.eval()
    model(inputs)
    model.train()


@pytest.mark.parametrize("batches", [fresh, slices])
def test_a_metric_of_the_batch_that_was_trained_on(
    recorder: Recorder, batches: Callable[[], Iterator[torch.Tensor]]
) -> None:
    start(recorder)
    train(accuracy, batches())
    [one] = told(recorder)
    assert one["class"] == "Sequential"
    assert one["calls"] >= 4
    assert one["seconds"] == pytest.approx(0.5 * STEPS, rel=0.1)
    file, line, _ = json.loads(recorder.read().texts[one["site"]][1])
    assert file.endswith("test_repeated_forwards.py")
    assert line == inspect.getsourcelines(accuracy)[1] + 3


@torch.no_grad()
def other_batch(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    model(torch.randn(4, 8))


@torch.no_grad()
def other_slice(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    model(ALL[60:64] if inputs.data_ptr() != ALL[60:64].data_ptr() else ALL[:4])


@torch.no_grad()
def changed_in_place(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    model(inputs.add_(1))


@torch.no_grad()
def rarely(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    if step % 10 == 0:
        model(inputs)


@torch.no_grad()
def another_model(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    OTHER(inputs)


OTHER = nn.Linear(8, 8)


def whole() -> Iterator[torch.Tensor]:
    """All data, in each step."""
    while True:
        yield ALL


@pytest.mark.parametrize(
    "beside", [other_batch, other_slice, changed_in_place, rarely, another_model]
)
def test_what_is_none(recorder: Recorder, beside: Beside) -> None:
    start(recorder)
    train(beside, slices() if beside is other_slice else fresh())
    assert told(recorder) == []


def test_where_each_step_is_for_all_data_none_is_told(recorder: Recorder) -> None:
    """Another part of a graph is evaluated, say, or a divergence from what was."""
    start(recorder)
    train(accuracy, whole())
    assert told(recorder) == []


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, inputs: torch.Tensor, head: int = 0) -> torch.Tensor:
        found: torch.Tensor = self.heads[head](inputs)
        return found


@pytest.mark.parametrize(("head", "is_told"), [(0, True), (1, False)])
def test_what_else_a_call_was_given_counts(recorder: Recorder, head: int, is_told: bool) -> None:
    start(recorder)
    model = Headed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        inputs = torch.randn(4, 8)
        model(inputs, 0).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(inputs, head)
        CLOCK.advance(1_000_000_000)
    assert bool(told(recorder)) is is_told


def test_what_is_called_ahead_of_backward_is_none(recorder: Recorder) -> None:
    """A reference that the loss is held against."""
    start(recorder)
    model = nn.Sequential(Slow(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        inputs = torch.randn(4, 8)
        outputs = model(inputs)
        with torch.no_grad():
            reference = model(inputs)
        (outputs - 2 * reference).square().mean().backward()
        optimizer.step()
        CLOCK.advance(1_000_000_000)
    assert told(recorder) == []


def test_inference_mode_is_no_trouble(recorder: Recorder) -> None:
    def validate(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
        with torch.inference_mode():
            model(model(torch.ones(4, 8)))

    start(recorder)
    train(validate, fresh())
    assert told(recorder) == []


def test_what_is_called_ahead_of_training_is_none(recorder: Recorder) -> None:
    start(recorder)
    train(lambda *_: None, fresh(), ahead=accuracy)
    assert told(recorder) == []


def test_training_goes_as_without_us(recorder: Recorder) -> None:
    torch.manual_seed(5)
    plain = train(accuracy, fresh())
    start(recorder)
    torch.manual_seed(5)
    assert train(accuracy, fresh()) == plain
