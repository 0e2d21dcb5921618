"""Which gradients with a graph are told as used now and then, and which are not."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.rarely_used_gradients import RarelyUsedGradientsProbe
from trainprof.record.schema import Kind, Topic

STEPS = 100
EVERY = 8
CLOCK = FakeClock()


def start(recorder: Recorder) -> None:
    recorder.start(RarelyUsedGradientsProbe(), BackwardProbe(), OptimizerProbe(), now=CLOCK)


def told(recorder: Recorder) -> list[dict[str, Any]]:
    """Returns what has been told by the script's end, without damage to the probes."""
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "rarely_used_gradients" in x]
    found: list[dict[str, Any]] = notes[-1]["rarely_used_gradients"] if notes else []
    return found


class Slow(torch.autograd.Function):
    """Going back through it takes a second of the fake clock."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(1_000_000_000)
        return grad


def judge() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def penalty(model: nn.Module, real: torch.Tensor) -> torch.Tensor:
    real = real.detach().requires_grad_()
    given = Slow.apply(model(real)).sum()
    (found,) = torch.autograd.grad(given, real, create_graph=True)
    result: torch.Tensor = found.square().sum(1).mean()
    return result


Added = Callable[[int, nn.Module, torch.Tensor], torch.Tensor | None]


def train(added: Added, *, steps: int = STEPS) -> list[float]:
    """Trains, with what is added to the loss of each step."""
    torch.manual_seed(3)
    model = judge()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        real = torch.randn(4, 8)
        loss = Slow.apply(model(real)).square().mean()
        further = added(step, model, real)
        if further is not None:
            loss = loss + further
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        CLOCK.advance(1_000_000_000)
    return losses


def adds_each_eighth(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    found = penalty(model, real)
    return found if step % EVERY == 0 else None


def test_a_penalty_that_few_updates_use_is_told(recorder: Recorder) -> None:
    start(recorder)
    train(adds_each_eighth)
    [one] = told(recorder)
    assert one["period"] == EVERY
    assert one["updates"] == STEPS - 1
    # Of two passes in each step one; those that use it go through that of the other once more.
    assert one["share"] == pytest.approx(0.5 * (1 - 1 / EVERY), abs=0.06)
    texts = recorder.read().texts
    for key, function, line in (("site", penalty, 3), ("caller", adds_each_eighth, 1)):
        file, number, _ = json.loads(texts[one[key]][1])
        assert file.endswith("test_rarely_used_gradients.py")
        assert number == inspect.getsourcelines(function)[1] + line


def test_a_penalty_of_a_loop_whose_variable_lives_on_is_told(recorder: Recorder) -> None:
    kept: list[torch.Tensor] = []

    def adds(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
        found = penalty(model, real)
        kept[:] = [found]
        return found if step % EVERY == 0 else None

    start(recorder)
    train(adds)
    assert [one["period"] for one in told(recorder)] == [EVERY]


def test_training_goes_as_without_us(recorder: Recorder) -> None:
    plain = train(adds_each_eighth)
    start(recorder)
    assert train(adds_each_eighth) == plain
    assert len(recorder.read().of(Kind.BACKWARD)) == 2 * STEPS


def adds_always(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor:
    return penalty(model, real)


def asks_when_due(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    return penalty(model, real) if step % EVERY == 0 else None


def only_reads(step: int, model: nn.Module, real: torch.Tensor) -> None:
    assert penalty(model, real).item() >= 0


def without_a_graph(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    """Saliency maps; now and then something else is learned from."""
    real = real.detach().requires_grad_()
    (found,) = torch.autograd.grad(model(real).sum(), real)
    return None if found is None or step % EVERY else penalty(model, real)


def by_its_value(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    """At odd times, that only the value can tell."""
    found = penalty(model, real)
    return found if step in (8, 11, 24, 40, 41, 60) else None


def adapts(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor:
    """MAML: an inner step, and more of them, to look at, after each eighth update."""
    losses = []
    for _ in range(20 if step % EVERY == 0 else 1):
        weights = dict(model.named_parameters())
        inner = torch.func.functional_call(model, weights, (real,)).square().mean()
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        pairs = zip(weights.items(), grads, strict=True)
        adapted = {name: weight - 0.1 * grad for (name, weight), grad in pairs}
        losses.append(torch.func.functional_call(model, adapted, (real,)).square().mean())
    return losses[0]


def multiplies_by_the_hessian(step: int, model: nn.Module, real: torch.Tensor) -> None:
    """Each eighth time; the first gradients serve the second ones."""
    parameters = list(model.parameters())
    first = torch.autograd.grad(model(real).square().mean(), parameters, create_graph=True)
    dot = torch.stack([one.sum() for one in first]).sum()
    torch.autograd.grad(dot, parameters, allow_unused=True)


def by_transform(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    found = torch.func.grad(lambda x: model(x).sum())(real)
    assert found.shape == real.shape
    return penalty(model, real)


def batched(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    """Of several outputs at once."""
    real = real.detach().requires_grad_()
    given = model(real).squeeze(1)
    (found,) = torch.autograd.grad(
        given, real, torch.eye(len(real)), create_graph=True, is_grads_batched=True
    )
    return found.square().mean()


def checkpoints(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor:
    real = real.detach().requires_grad_()
    given: torch.Tensor = checkpoint(model, real, use_reentrant=False)
    (found,) = torch.autograd.grad(given.sum(), real, create_graph=True)
    return found.square().mean()


class SumsUp:
    """Keeps what it computes until backward goes through all of it."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __call__(self, step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
        # Of parameters that no optimizer changes meanwhile.
        weight = torch.ones(8, requires_grad=True)
        (found,) = torch.autograd.grad((real * weight**3).sum(), weight, create_graph=True)
        self.kept.append(found.square().mean())
        if step % EVERY:
            return None
        total = torch.stack(self.kept).mean()
        self.kept.clear()
        return total


def ends_early(step: int, model: nn.Module, real: torch.Tensor) -> torch.Tensor | None:
    """Regular at first, and for good from then on: another phase of training."""
    found = penalty(model, real)
    return found if step % EVERY == 0 or step > 60 else None


USED = {
    "at each update": adds_always,
    "asked for when due": asks_when_due,
    "read": only_reads,
    "without a graph": without_a_graph,
    "at odd times": by_its_value,
    "inner steps": adapts,
    "products with the Hessian": multiplies_by_the_hessian,
    "torch.func": by_transform,
    "batched": batched,
    "checkpointed": checkpoints,
    "summed up": SumsUp(),
    "in the end always": ends_early,
    "nothing": lambda step, model, real: None,
}


@pytest.mark.parametrize("added", USED.values(), ids=USED)
def test_what_is_used_or_may_be_is_not_told(recorder: Recorder, added: Added) -> None:
    start(recorder)
    train(added)
    assert told(recorder) == []


@pytest.mark.parametrize("added", [adds_always, USED["nothing"], by_its_value])
def test_what_is_no_rule_is_watched_no_longer(recorder: Recorder, added: Added) -> None:
    start(recorder)
    train(added, steps=40)
    assert recorder.session.backward_watches
    train(added)
    assert recorder.session.backward_watches == ()


def test_what_is_dear_to_look_at_is_left(recorder: Recorder) -> None:
    start(recorder)
    recorder.session.now = lambda: CLOCK.advance(100_000_000) or CLOCK()
    train(adds_each_eighth)
    assert recorder.session.backward_watches == ()
