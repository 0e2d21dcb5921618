"""What denormal numbers are told to cost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.package import PACKAGE
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainprof.probes import tiny_numbers
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.session import Probe
from trainprof.probes.tiny_numbers import TinyNumbersProbe
from trainprof.record.schema import Topic

CLOCK = FakeClock()
STEPS, TINY, SMALL = 60, 1e-40, 1e-30


def probes() -> list[Probe]:
    return [ForwardProbe(), TinyNumbersProbe(), OptimizerProbe()]


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's CPU makes of them: 1 us for each denormal that is computed with."""

    def took_ns(self: TinyNumbersProbe, operator: Any, given: list[torch.Tensor]) -> int:
        operator(*given)
        tiny = [(one.abs() < torch.finfo(one.dtype).tiny) & (one != 0) for one in given]
        return 1_000 * sum(int(one.sum()) for one in tiny)

    monkeypatch.setattr(TinyNumbersProbe, "_took_ns", took_ns)


def inputs(scale: float) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(8, 64)
        x[:, 32:] *= scale
        CLOCK.advance(1_000_000_000)
        yield x


def train(model: nn.Module, scale: float, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x in inputs(scale):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 1))


def convolving() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 4, 5, stride=2), nn.Flatten())


class ByHand(nn.Module):
    """A trace that decays, multiplied; what it is used in has no module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]] | torch.Tensor:
        return (x * self.weight) * 0.5


def told_by(recorder: Recorder) -> dict[str, Any] | None:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    found = [x["tiny_numbers"] for x in recording.notes(Topic.ENVIRONMENT) if "tiny_numbers" in x]
    return found[-1] if found else None


@pytest.mark.parametrize("make", [linear, convolving, ByHand])
def test_operators_that_are_given_denormals(recorder: Recorder, make: Any) -> None:
    plain = train(make(), TINY)
    recorder.start(*probes(), now=CLOCK)
    assert train(make(), TINY) == plain
    told = told_by(recorder)
    assert told is not None
    assert told["looks"] >= 2
    assert told["operators_ns"] / told["operators_looks"] == pytest.approx(8 * 32 * 1_000)
    assert told["optimizers_ns"] == 0
    assert told["since"] == 0  # the first look met them
    assert told["share"] == pytest.approx(0.5)
    assert told["site"] > 0


def took_more_for_denormals(
    self: TinyNumbersProbe, operator: Any, given: list[torch.Tensor]
) -> int:
    """Whatever operands are: 10 us, and 1 us for each of their denormals."""
    operator(*given)
    tiny = [(one.abs() < torch.finfo(one.dtype).tiny) & (one != 0) for one in given]
    return 10_000 + 1_000 * sum(int(one.sum()) for one in tiny)


def needing_gradients(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return model(x.requires_grad_())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "call", "kept", "behind"),
    [
        (linear, lambda x, model: model(x), 2, 3),  # the first one's input needs no gradient
        (linear, needing_gradients, 2, 4),
        (convolving, lambda x, model: model(x), 1, 1),
        (convolving, needing_gradients, 1, 2),
        (ByHand, lambda x, model: model(x), 2, 2),  # of a number there is no gradient
        (lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))), needing_gradients, 20, 40),
    ],
)
def test_what_operators_take_without_denormals(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    call: Any,
    kept: int,
    behind: int,
) -> None:
    monkeypatch.setattr(TinyNumbersProbe, "_took_ns", took_more_for_denormals)
    recorder.start(*probes(), now=CLOCK)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in inputs(TINY):
        optimizer.zero_grad()
        call(x, model).square().mean().backward()
        optimizer.step()
    told = told_by(recorder)
    assert told is not None
    looks = told["operators_looks"]
    assert told["operators_kept_ns"] / looks == kept * 10_000
    assert told["operators_kept_behind_ns"] / looks == behind * 10_000


def test_operators_without_denormals_are_timed_beside_others_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TinyNumbersProbe, "_took_ns", lambda *_: pytest.fail("was timed"))
    recorder.start(*probes(), now=CLOCK)
    train(linear(), 1.0)
    assert told_by(recorder) is None


def test_operators_count_once_whatever_else_hangs_on_their_graph(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    encoder, head, loss_of = linear(), nn.Linear(1, 1), nn.MSELoss()
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    for x in inputs(TINY):
        optimizer.zero_grad()
        loss_of(head(encoder(x)), torch.ones(8, 1)).backward()
        optimizer.step()
    told = told_by(recorder)
    assert told is not None
    assert told["operators_ns"] / told["operators_looks"] == pytest.approx(8 * 32 * 1_000)


def test_looks_without_any_count_from_the_first_one_that_met_some(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales = [1.0] * 20 + [TINY] * 10 + [1.0] * 30
    for x, scale in zip(inputs(1.0), scales, strict=True):
        x[:, 32:] *= scale
        model(x).square().mean().backward()
        optimizer.step()
    told = told_by(recorder)
    assert told is not None
    assert 20 < told["since"] <= 30
    assert told["looks"] < told["operators_looks"]
    assert told["operators_ns"] == told["looks"] * 8 * 32 * 1_000


@pytest.mark.parametrize("scale", [SMALL, 0.0, 1.0])
def test_other_small_numbers_are_none(recorder: Recorder, scale: float) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(linear(), scale)
    assert told_by(recorder) is None


def test_what_an_optimizer_keeps_of_weights_without_gradients(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    model = nn.Linear(64, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(8, 64)
    x[:, :16] = 0.0
    for step in range(STEPS):
        CLOCK.advance(1_000_000_000)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if not step:
            optimizer.step()
            optimizer.state[model.weight]["momentum_buffer"][:, :16] = TINY
        optimizer.step()
    told = told_by(recorder)
    assert told is not None
    assert told["operators_ns"] == 0
    assert told["optimizers_ns"] / told["optimizers_looks"] == pytest.approx(2 * 16 * 512 * 1_000)


def test_graphs_that_somebody_packs_are_left_alone(recorder: Recorder) -> None:
    unpacked: list[int] = []

    def unpack(kept: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return kept

    def train_packed() -> int:
        unpacked.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, unpack):
            train(linear(), TINY)
        return len(unpacked)

    plain = train_packed()
    recorder.start(*probes(), now=CLOCK)
    assert train_packed() == plain
    assert told_by(recorder) is None


def test_models_that_are_traced_are_left_alone(recorder: Recorder) -> None:
    """What is computed meanwhile would be in the trace, which keeps none of it alive."""

    def traced() -> tuple[list[str], set[str]]:
        model, places = linear(), set()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        graphs = []
        for x in inputs(TINY):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                graph = torch.jit.trace(model, x, check_trace=False).inlined_graph
            graphs.append(" ".join(node.kind() for node in graph.nodes()))
            places |= {f"{one.filename}: {one.message}" for one in caught}
            optimizer.step()
        return graphs, {place for place in places if PACKAGE in place}

    plain, _ = traced()
    recorder.start(*probes(), now=CLOCK)
    graphs, ours = traced()
    assert ours == set()
    assert graphs == plain


class Checkpointed(nn.Module):
    """Its block counts what it has seen, as a BatchNorm does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh())

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


def test_no_forward_is_computed_again_for_what_it_would_give_back(recorder: Recorder) -> None:
    def trained() -> tuple[int, Any]:
        model = Checkpointed()
        losses = train(model, TINY)
        return int(model.block[1].num_batches_tracked), losses  # type: ignore[arg-type]

    plain = trained()
    recorder.start(*probes(), now=CLOCK)
    assert trained() == plain
    assert told_by(recorder) is None


def test_flushed_to_zero_there_are_none(recorder: Recorder) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot")
    try:
        recorder.start(*probes(), now=CLOCK)
        train(linear(), TINY)
    finally:
        torch.set_flush_denormal(False)
    assert told_by(recorder) is None


def test_looks_come_to_an_end(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_numbers, "_MOST_LOOKS", 3)
    session = recorder.start(*probes(), now=CLOCK)
    train(linear(), 1.0)
    assert session.step_watches == ()
