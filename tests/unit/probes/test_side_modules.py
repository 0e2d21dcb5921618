"""Which modules are told of that have nothing to learn, and what they are said to do."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.unused_forwards import UnusedForwardsProbe
from trainprof.record.schema import Topic

STEPS = 40
CLOCK = FakeClock()


class Slow(nn.Module):
    """Takes a quarter of a second of the fake clock, and has nothing to learn."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(250_000_000)
        return inputs * 2


class Compared(nn.Module):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (inputs - targets).abs().mean()


class Normalised(Slow):
    """By what it has seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(inputs)


class Scaled(Slow):
    """By a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.ones(()))


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def told(recorder: Recorder) -> list[dict[str, Any]]:
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "side_modules" in x]
    found: list[dict[str, Any]] = notes[-1]["side_modules"] if notes else []
    return found


Step = Callable[[int, nn.Module, torch.Tensor, Callable[[torch.Tensor], None]], None]


def train(
    recorder: Recorder, model: nn.Module, step: Step, steps: int = STEPS
) -> list[dict[str, Any]]:
    """Trains; a step gives its loss to what updates by it."""
    recorder.start(
        UnusedForwardsProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe(), now=CLOCK
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def update(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for number in range(steps):
        step(number, model, torch.randn(4, 8), update)
        CLOCK.advance(1_000_000_000)
    return told(recorder)


slow, other, scaled = Slow(), Slow(), Scaled()


@functools.cache
def metric() -> Any:
    from torchmetrics import MeanMetric

    return MeanMetric()


@pytest.fixture(scope="module", autouse=True)
def _torchmetrics_is_imported() -> None:
    """Its first import leaves an import hook, which no test may leave."""
    with contextlib.suppress(ImportError):
        metric()


def prepares(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    update(model(slow(inputs)).square().mean())


def prepares_without_gradients(step: int, model: nn.Module, inputs: Any, update: Any) -> None:
    with torch.no_grad():
        inputs = scaled(inputs)
    update(model(inputs).square().mean())


def prepares_two_views(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    views = [slow(inputs) for _ in range(2)]
    update((model(views[0]) - model(views[1])).square().mean())


def prepares_in_two_steps(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    update(model(scaled(slow(inputs))).square().mean())


ALIKE = nn.Sequential(slow)


def prepares_by_a_module_of_the_same_class(step: int, model: Any, inputs: Any, update: Any) -> None:
    update(model(ALIKE(inputs)).square().mean())


@pytest.mark.parametrize(
    ("step", "lines", "calls"),
    [
        (prepares_by_a_module_of_the_same_class, 1, 1),
        (prepares, 1, 1),
        (prepares_without_gradients, 1, 1),
        (prepares_two_views, 1, 2),
        (prepares_in_two_steps, 2, 2),
    ],
)
def test_what_prepares_the_models_input(
    recorder: Recorder, model: nn.Module, step: Step, lines: int, calls: int
) -> None:
    found = train(recorder, model, step)
    assert len(found) == lines
    assert {one["role"] for one in found} == {"data"}
    assert sum(one["seconds"] for one in found) == pytest.approx(0.25 * calls * STEPS, rel=0.1)
    file, line, _ = json.loads(recorder.read().texts[found[0]["site"]][1])
    assert file.endswith("test_side_modules.py")
    code = inspect.getsourcelines(step)
    assert "(inputs)" in code[0][line - code[1]]


def measures(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    out = model(inputs)
    metric()(out.detach().mean())
    update(out.square().mean())


def looks(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    out = model(inputs)
    update(out.square().mean())
    slow(out.detach())


@pytest.mark.parametrize("steps", [STEPS, 10 * STEPS])
@pytest.mark.parametrize(
    ("step", "role"),
    [
        pytest.param(measures, "metric", marks=pytest.mark.frameworks("torchmetrics")),
        (looks, "watched"),
    ],
)
def test_what_only_looks(
    recorder: Recorder, model: nn.Module, step: Step, role: str, steps: int
) -> None:
    [one] = train(recorder, model, step, steps)
    assert one["role"] == role


def test_what_prepares_data_does_so_in_long_runs(recorder: Recorder, model: nn.Module) -> None:
    [one] = train(recorder, model, prepares, 10 * STEPS)
    assert one["role"] == "data"
    assert one["seconds"] == pytest.approx(0.25 * 10 * STEPS, rel=0.1)


softmax, flatten, sharpen, normalised = nn.Softmax(1), nn.Flatten(), Slow(), Normalised()
teacher, compared, l1 = nn.Linear(8, 8), Compared(), nn.L1Loss()


def is_a_part_of_the_model(step: int, model: nn.Module, inputs: Any, update: Any) -> None:
    update(softmax(flatten(model(inputs))).square().mean())


def makes_the_target(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    """Of what the model gives."""
    out = model(inputs)
    target = sharpen(out.detach())
    update((out - target).square().mean())


def makes_the_target_of_a_teacher(step: int, model: Any, inputs: Any, update: Any) -> None:
    with torch.no_grad():
        target = sharpen(teacher(inputs))
    update((model(inputs) - target).square().mean())


def changes_what_a_teacher_gave(step: int, model: Any, inputs: Any, update: Any) -> None:
    with torch.no_grad():
        made = sharpen(teacher(inputs))
    update(model(made).square().mean())


def makes_weights(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    """Of the data, by which a loss goes: nobody sees where they end."""
    weights = slow(inputs)
    update((model(inputs) * weights).square().mean())


def keeps_count(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    update(model(normalised(inputs)).square().mean())


def keeps_what_it_was_given(step: int, model: nn.Module, inputs: Any, update: Any) -> None:
    """A memory, by which later steps go."""
    out = model(inputs)
    update(out.square().mean())
    scaled(out.detach())


def looks_rarely(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    out = model(inputs)
    update(out.square().mean())
    if step % 20 == 0:
        slow(out.detach())


def measures_rarely(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    update(model(inputs).square().mean())
    if step % 20 == 19:
        with torch.no_grad():
            for _ in range(10):
                metric()(model(inputs).mean())


def judges(step: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
    """By losses that are modules: torch's, and one by hand."""
    update(compared(model(inputs), inputs) + l1(model(inputs), inputs))


NOT_TOLD = (
    is_a_part_of_the_model,
    makes_the_target,
    makes_the_target_of_a_teacher,
    changes_what_a_teacher_gave,
    makes_weights,
    keeps_count,
    keeps_what_it_was_given,
    looks_rarely,
    pytest.param(measures_rarely, marks=pytest.mark.frameworks("torchmetrics")),
    judges,
)


@pytest.mark.parametrize("step", NOT_TOLD)
def test_of_what_training_may_go_by_nothing_is_said(
    recorder: Recorder, model: nn.Module, step: Step
) -> None:
    assert train(recorder, model, step) == []


class Transformed(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        result: torch.Tensor = slow(torch.randn(4, 8))
        return result


def test_what_a_loader_calls_is_there_already(recorder: Recorder, model: nn.Module) -> None:
    batches = iter(DataLoader(Transformed(), batch_size=None))

    def step(number: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
        update(model(next(batches)).square().mean())

    assert train(recorder, model, step) == []


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_model_that_torch_has_scripted_is_none(recorder: Recorder, model: nn.Module) -> None:
    scripted = torch.jit.trace(nn.Linear(8, 8).requires_grad_(False), torch.randn(4, 8))

    def step(number: int, model: nn.Module, inputs: torch.Tensor, update: Any) -> None:
        with torch.no_grad():
            inputs = scripted(inputs)
        update(model(inputs).square().mean())

    assert train(recorder, model, step) == []
