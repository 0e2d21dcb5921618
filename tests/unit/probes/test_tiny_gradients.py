"""What denormal numbers are told to cost where only gradients are such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.session import Probe
from trainprof.probes.tiny_numbers import TinyNumbersProbe
from trainprof.record.schema import Topic

CLOCK = FakeClock()
STEPS, TINY, BACK = 40, 1e-40, 60

Losses = tuple[list[float], list[torch.Tensor]]


def probes() -> list[Probe]:
    return [ForwardProbe(), BackwardProbe(), TinyNumbersProbe(), OptimizerProbe()]


def denormals_in(given: list[torch.Tensor]) -> int:
    tiny = [(one.abs() < torch.finfo(one.dtype).tiny) & (one != 0) for one in given]
    return sum(int(one.sum()) for one in tiny)


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whatever the CPU makes of them: 10 us, and 1 us for each denormal; those of each timing."""
    met: list[int] = []

    def took_ns(self: TinyNumbersProbe, operator: Any, given: list[torch.Tensor]) -> int:
        operator(*given)
        met.append(denormals_in(given))
        return 10_000 + 1_000 * met[-1]

    monkeypatch.setattr(TinyNumbersProbe, "_took_ns", took_ns)
    return met


class Reader(nn.Module):
    """Its weights are so small that of a gradient a tenth is left, a step further back."""

    def __init__(self, reads_all: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reads_all = reads_all
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 1)
        with torch.no_grad():
            self.rnn.weight_hh_l0.mul_(0.1)
            self.rnn.bias_ih_l0[8:16] = -3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.rnn(x)[0]
        return self.head(states.mean(1) if self.reads_all else states[:, -1])  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """Its block counts what it has seen, as a BatchNorm does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, x[:, 0], use_reentrant=False)


def squared(out: torch.Tensor) -> torch.Tensor:
    return (out - 1).square().mean()


def scaled(out: torch.Tensor) -> torch.Tensor:
    return (out * TINY).sum()


def backwards(loss: torch.Tensor) -> None:
    loss.backward()


def train(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = squared,
    backward: Callable[[torch.Tensor], None] = backwards,
    is_updated: bool = True,
) -> Losses:
    """Returns each loss, and all gradients of the last step."""
    torch.manual_seed(1)
    others = [nn.Parameter(torch.ones(1))]
    optimizer = torch.optim.SGD(model.parameters() if is_updated else others, lr=0.01)
    losses = []
    for _ in range(STEPS):
        CLOCK.advance(1_000_000_000)
        loss = loss_of(model(torch.randn(8, BACK, 4)))
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.grad for one in model.parameters() if one.grad is not None]


def same(some: Losses, others: Losses) -> bool:
    return some[0] == others[0] and all(map(torch.equal, some[1], others[1]))


def told_by(recorder: Recorder) -> dict[str, Any] | None:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    found = [x["tiny_numbers"] for x in recording.notes(Topic.ENVIRONMENT) if "tiny_numbers" in x]
    return found[-1] if found else None


def test_gradients_that_vanish_on_their_way_back(recorder: Recorder) -> None:
    plain = train(Reader())
    recorder.start(*probes(), now=CLOCK)
    assert same(train(Reader()), plain)
    told = told_by(recorder)
    assert told is not None
    assert told["looks"] >= 2
    assert told["since"] == 0
    assert told["operators_ns"] == told["optimizers_ns"] == 0
    assert told["gradients_ns"] > 0
    assert told["gradients_kept_ns"] > 0
    assert 0.1 < told["gradients_share"] <= 1
    assert told["gradients_site"] > 0


def test_gradients_that_come_in_at_each_step_do_not_vanish(
    recorder: Recorder, timed: list[int]
) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(Reader(reads_all=True))
    assert told_by(recorder) is None
    assert timed == []


def test_each_operator_that_is_given_some_counts(recorder: Recorder) -> None:
    """Eight numbers each, for the last layer and the one before."""
    recorder.start(*probes(), now=CLOCK)
    train(nn.Sequential(nn.Flatten(), nn.Linear(4 * BACK, 1), nn.Linear(1, 1)), scaled)
    told = told_by(recorder)
    assert told is not None
    looks = told["gradients_looks"]
    assert told["gradients_ns"] / looks == pytest.approx(2 * 8 * 1_000)
    assert told["gradients_kept_ns"] / looks == pytest.approx(2 * 10_000)
    assert told["gradients_share"] == 1


def test_of_many_operators_some_stand_for_all(recorder: Recorder, timed: list[int]) -> None:
    layers = [nn.Linear(1, 1) for _ in range(320)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    recorder.start(*probes(), now=CLOCK)
    train(nn.Sequential(nn.Flatten(), nn.Linear(4 * BACK, 1), *layers), scaled)
    told = told_by(recorder)
    assert told is not None
    of_a_step = told["gradients_ns"] / told["gradients_looks"]
    assert of_a_step == pytest.approx(321 * 8 * 1_000, rel=0.05)
    assert len(timed) <= 24 * told["looks"]


def test_each_look_stands_for_the_steps_before_it(recorder: Recorder) -> None:
    """A model that learns to remember: its first steps are looked at more often than its last."""
    met: list[float] = []

    def fading(out: torch.Tensor) -> torch.Tensor:
        met.append(TINY if len(met) < 20 else 1.0)
        return (out * met[-1]).sum()

    recorder.start(*probes(), now=CLOCK)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * BACK, 1))
    with torch.no_grad():
        train(model, lambda out: out.sum(), lambda _: None, is_updated=False)
    assert met == []
    with torch.enable_grad():
        train(model, fading)
    told = told_by(recorder)
    assert told is not None
    assert told["gradients_ns"] / told["gradients_looks"] < 8 * 1_000


def test_where_denormals_cost_next_to_nothing_there_are_none(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def took_ns(self: TinyNumbersProbe, operator: Any, given: list[torch.Tensor]) -> int:
        return 11_000 if denormals_in(given) else 10_000

    monkeypatch.setattr(TinyNumbersProbe, "_took_ns", took_ns)
    recorder.start(*probes(), now=CLOCK)
    train(Reader())
    assert told_by(recorder) is None


def test_hooks_are_gone_after_the_step(recorder: Recorder, timed: list[int]) -> None:
    kept: list[torch.Tensor] = []

    def retained(loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        kept.append(loss)

    recorder.start(*probes(), now=CLOCK)
    train(Reader(), backward=retained, is_updated=False)
    count = len(timed)
    assert count
    for loss in kept:
        loss.backward()
    assert len(timed) == count


def test_no_forward_is_computed_again_for_what_it_would_give_back(recorder: Recorder) -> None:
    def trained() -> tuple[int, Losses]:
        model = Checkpointed()
        losses = train(model, scaled)
        return int(model.block[1].num_batches_tracked), losses  # type: ignore[arg-type]

    seen, plain = trained()
    recorder.start(*probes(), now=CLOCK)
    seen_now, losses = trained()
    assert seen_now == seen
    assert same(losses, plain)
    assert told_by(recorder) is None


def test_a_backward_that_is_differentiated_is_left_alone(
    recorder: Recorder, timed: list[int]
) -> None:
    def differentiable(loss: torch.Tensor) -> None:
        weights = list(model.parameters())
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad.detach()

    model = Reader()
    recorder.start(*probes(), now=CLOCK)
    train(model, backward=differentiable)
    assert told_by(recorder) is None
    assert timed == []


def test_where_another_look_times_nodes_nothing_is_done_in_between(
    recorder: Recorder, timed: list[int]
) -> None:
    session = recorder.start(*probes(), now=CLOCK)
    session.passes_timed = 1
    train(Reader())
    assert told_by(recorder) is None
    assert timed == []


def test_flushed_to_zero_there_are_none(recorder: Recorder) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot")
    try:
        recorder.start(*probes(), now=CLOCK)
        train(Reader())
    finally:
        torch.set_flush_denormal(False)
    assert told_by(recorder) is None
