"""Which calls of a model are told of that take a batch apart, and which are not."""

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

STEPS, ROWS = 40, 12
CLOCK = FakeClock()
Losses = Callable[[nn.Module, torch.Tensor, torch.Tensor], Any]


def told(recorder: Recorder) -> list[dict[str, Any]]:
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "sample_calls" in x]
    found: list[dict[str, Any]] = notes[-1]["sample_calls"] if notes else []
    return found


def train(
    recorder: Recorder,
    losses: Losses,
    model: nn.Module | None = None,
    *,
    rows: int = ROWS,
    shape: tuple[int, ...] = (8,),
    steps: int = STEPS,
) -> list[dict[str, Any]]:
    recorder.start(
        UnusedForwardsProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe(), now=CLOCK
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(steps):
        loss = losses(model, torch.randn(rows, *shape), torch.randn(rows, 1))
        if loss is not None:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        CLOCK.advance(1_000_000_000)
    return told(recorder)


def row_by_row(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return sum((model(x[None]) - y[None]).square().mean() for x, y in zip(xs, ys, strict=True))


def as_they_are(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return torch.stack([(model(x) - y).square().mean() for x, y in zip(xs, ys, strict=True)]).sum()


def by_number(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    outs = torch.cat([model(xs[i : i + 1]) for i in range(len(xs))])
    return (outs - ys).square().mean()


@pytest.mark.parametrize("losses", [row_by_row, as_they_are, by_number])
def test_a_batch_that_is_taken_apart_is_told(recorder: Recorder, losses: Losses) -> None:
    [one] = train(recorder, losses)
    assert (one["class"], one["rows"]) == ("Sequential", ROWS)
    file, line, _ = json.loads(recorder.read().texts[one["site"]][1])
    assert file.endswith("test_sample_calls.py")
    code = inspect.getsourcelines(losses)
    assert "model(x" in code[0][line - code[1]]


class Timed(nn.Linear):
    """Takes a millisecond of the fake clock."""

    def __init__(self) -> None:
        super().__init__(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(1_000_000)
        return super().forward(x)


def test_so_it_is_in_long_runs(recorder: Recorder) -> None:
    [one] = train(recorder, row_by_row, Timed(), steps=8 * STEPS)
    assert one["rows"] == ROWS
    assert one["each_s"] == pytest.approx(0.001)
    assert one["seconds"] == pytest.approx(0.001 * ROWS * 8 * STEPS, rel=0.05)
    assert one["share"] == pytest.approx(1.0)


def all_at_once(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return (model(xs) - ys).square().mean()


def as_rows_of_numbers(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return (model(xs.view(len(xs), -1)) - ys).square().mean()


def one_pass_each(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> None:
    """Less memory, or gradients of each sample that are clipped."""
    for x, y in zip(xs, ys, strict=True):
        (model(x[None]) - y[None]).square().mean().backward()


def some_each(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return sum((model(part)).square().mean() for part in xs.split(2))


def unequal_lengths(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    samples = [torch.randn(1 + i % 3, 8) for i in range(len(xs))]
    return sum(model(one).square().mean() for one in samples)


def an_environment(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    """What it acts by is what it sees next: one observation at a time."""
    seen, chosen = torch.randn(8), []
    for _ in range(ROWS):
        out = model(seen[None])
        chosen.append(out)
        seen = torch.randn(8) + out.item()
    return torch.cat(chosen).mean()


def an_environment_that_fills_a_tensor(
    model: nn.Module, xs: torch.Tensor, ys: torch.Tensor
) -> torch.Tensor:
    seen, outs = torch.zeros(ROWS, 8), []
    for step in range(ROWS):
        seen[step] = torch.randn(8) + (outs[-1].item() if outs else 0)
        outs.append(model(seen[step : step + 1].clone()))
    return torch.cat(outs).mean()


def micro_batches(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    """Batches of one on purpose, each of its own from a loader."""
    return sum(model(torch.randn(1, 8)).square().mean() for _ in range(ROWS))


def the_same_row(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    """Its dropout is what differs."""
    return torch.cat([model(xs[:1]) for _ in range(ROWS)]).square().mean()


NOT_TAKEN_APART = (
    all_at_once,
    as_rows_of_numbers,
    one_pass_each,
    some_each,
    unequal_lengths,
    an_environment,
    an_environment_that_fills_a_tensor,
    micro_batches,
    the_same_row,
)


@pytest.mark.parametrize("losses", NOT_TAKEN_APART)
def test_what_is_no_batch_taken_apart_is_not_told(recorder: Recorder, losses: Losses) -> None:
    assert train(recorder, losses) == []


def test_few_rows_are_not_told(recorder: Recorder) -> None:
    assert train(recorder, row_by_row, rows=4) == []


class Cell(nn.Module):
    """Of a recurrent network, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x) + self.state(h))


class Leaky(nn.Module):
    """Keeps what it had by itself, as spiking neurons do."""

    def __init__(self, *, is_cut: bool) -> None:
        super().__init__()
        self.inner, self.is_cut = nn.Linear(8, 8), is_cut
        self.kept = torch.zeros(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.inner(x) + 0.9 * self.kept
        self.kept = result.detach() if self.is_cut else result
        return result


class Listed(Leaky):
    """Keeps it in a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.__dict__.setdefault("before", [])
        result = self.inner(x) + sum(before[-1:])
        before[:] = [result.detach() if self.is_cut else result]
        return result


MEMORY: list[torch.Tensor] = []


class Remembering(Leaky):
    """Keeps it elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        MEMORY[:] = [self.inner(x) + sum(MEMORY)]
        return MEMORY[0]


class Counting(nn.Module):
    """Writes into a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("sum", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum += x.detach().mean(0)
        result: torch.Tensor = self.inner(x - self.sum)
        return result


def cell_by_cell(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(1, 8)
    for x in xs:
        h = model(x[None], h)
    return h.mean()


def cut_cells(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    h, outs = torch.zeros(1, 8), []
    for x in xs:
        outs.append(model(x[None], h))
        h = outs[-1].detach()
    return torch.cat(outs).mean()


def state_of_its_own(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    model.kept = torch.zeros(1, 8)
    return torch.cat([model(x[None]) for x in xs]).mean()


def from_nothing(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    MEMORY.clear()
    return only_rows(model, xs, ys)


def only_rows(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
    return torch.cat([model(x[None]) for x in xs]).mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)[0]
        return result


@pytest.mark.parametrize(
    ("model", "losses"),
    [
        (Cell(), cell_by_cell),
        (Cell(), cut_cells),
        (nn.GRUCell(8, 8), cell_by_cell),
        (Leaky(is_cut=False), state_of_its_own),
        (Leaky(is_cut=True), state_of_its_own),
        (Listed(is_cut=True), only_rows),
        (Remembering(is_cut=False), from_nothing),
        (Counting(), only_rows),
        (Recurrent(), only_rows),
        (nn.TransformerEncoderLayer(8, 2, 8), only_rows),
    ],
)
def test_calls_that_go_on_with_what_came_before_are_not_told(
    recorder: Recorder, model: nn.Module, losses: Losses
) -> None:
    assert train(recorder, losses, model) == []


class Boxes(nn.Module):
    """With a buffer that never changes, as anchors and positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3)
        self.register_buffer("positions", torch.ones(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) + self.positions
        return result


def test_a_model_with_constants_and_pictures(recorder: Recorder) -> None:
    [one] = train(recorder, only_rows, Boxes(), shape=(3, 6, 6))
    assert one["rows"] == ROWS


def test_several_models_of_one_line_are_not_one(recorder: Recorder) -> None:
    """As an ensemble's, or one for each part of what is given."""
    models = nn.ModuleList(nn.Linear(8, 1) for _ in range(ROWS))

    def each(model: nn.Module, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        pairs: Iterator[tuple[nn.Module, torch.Tensor]] = zip(models, xs, strict=True)
        return torch.cat([one(x[None]) for one, x in pairs]).mean()

    assert train(recorder, each, models) == []


def test_training_goes_as_without_us(recorder: Recorder) -> None:
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    train(recorder, row_by_row, model)
    with_us = [p.detach().clone() for p in model.parameters()]
    torch.manual_seed(1)
    again = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(again.parameters(), lr=0.001)
    for _ in range(STEPS):
        row_by_row(again, torch.randn(ROWS, 8), torch.randn(ROWS, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(with_us, again.parameters(), strict=True):
        assert torch.equal(one, other)
