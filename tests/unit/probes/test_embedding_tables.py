"""Which tables of embeddings are told of, and what their gradients take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.catalogue import default_probes
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.unused_gradients import UnusedGradientsProbe
from trainprof.record.schema import Topic

ROWS, WIDTH, BATCH = 20_000, 8, 16
CLOCK = FakeClock()
Forward = Callable[[torch.Tensor], torch.Tensor]


class Slow(torch.autograd.Function):
    """Takes some ms of the fake clock on its way back, before what comes of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: int) -> torch.Tensor:
        ctx.ms = ms
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        CLOCK.advance(ctx.ms * 1_000_000)
        return grad, None


def table(rows: int = ROWS, **arguments: Any) -> nn.Embedding:
    return nn.Embedding(rows, WIDTH, **arguments)


def train(model: nn.Module, forward: Forward, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = forward(torch.randint(0, 1_000, (BATCH,))).square().mean()
        loss.backward()
        optimizer.step()
        CLOCK.advance(1_000_000_000)
        losses.append(loss.item())
    return losses


def told(recorder: Recorder) -> dict[str, Any] | None:
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "embedding_tables" in x]
    last: dict[str, Any] | None = notes[-1]["embedding_tables"] if notes else None
    return last


def start(recorder: Recorder) -> None:
    probes = [UnusedGradientsProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe()]
    recorder.start(*probes, now=CLOCK)


class Scored(nn.Module):
    """Looks up rows, and multiplies them: with the table itself where weights are tied."""

    def __init__(self, is_tied: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.rows, self.out = table(**arguments), nn.Linear(WIDTH, 1)
        self.is_tied = is_tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = Slow.apply(self.rows(x), 0)
        if self.is_tied:
            found = found @ self.rows.weight[:WIDTH].t()
        return self.out(found)


def test_a_table_is_told_with_its_line_and_what_changes_it(recorder: Recorder) -> None:
    start(recorder)
    model = Scored()
    train(model, model, torch.optim.Adam(model.parameters()))
    found = told(recorder)
    assert found is not None
    [one] = found["tables"]
    assert (one["rows"], one["numbers"], one["indices"]) == (ROWS, ROWS * WIDTH, BATCH)
    assert (one["optimizer"], one["is_plain"]) == ("Adam", False)
    assert (found["numbers"], found["looks"]) == (ROWS * WIDTH + WIDTH + 1, 12)
    file, line, _ = recorder.read().texts[one["site"]][1].strip("[]").split(", ", 2)
    lines, first = inspect.getsourcelines(table)
    assert file.endswith('test_embedding_tables.py"')
    assert int(line) == first + len(lines) - 1


def test_a_model_that_was_built_unseen_is_told_by_its_call(recorder: Recorder) -> None:
    model = Scored()
    start(recorder)
    train(model, model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = told(recorder)
    assert found is not None
    line = recorder.read().texts[found["tables"][0]["site"]][1].split(", ")[1]
    assert (
        "forward("
        in inspect.getsource(inspect.getmodule(train) or train).splitlines()[int(line) - 1]
    )


@pytest.mark.parametrize(("before_ms", "after_ms"), [(30, 10), (0, 10)])
def test_the_share_of_backward_is_timed(recorder: Recorder, before_ms: int, after_ms: int) -> None:
    """What a hook on the weight does comes in the time of its gradient."""
    start(recorder)
    model = Scored()
    model.rows.weight.register_hook(lambda grad: CLOCK.advance(after_ms * 1_000_000))

    def forward(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Slow.apply(model(x), before_ms)
        return found

    train(model, forward, torch.optim.Adam(model.parameters()))
    found = told(recorder)
    assert found is not None
    assert found["backward_share"] == pytest.approx(after_ms / (before_ms + after_ms), rel=0.02)


@pytest.mark.parametrize(
    ("settings", "name", "is_plain"),
    [
        ({}, "SGD", True),
        ({"momentum": 0.9}, "SGD", False),
        ({"weight_decay": 0.1}, "SGD", False),
        ({}, "Adagrad", True),
    ],
)
def test_whether_rows_without_a_gradient_stay_as_they_are(
    recorder: Recorder, settings: dict[str, float], name: str, is_plain: bool
) -> None:
    start(recorder)
    model = Scored()
    train(model, model, getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings))
    found = told(recorder)
    assert found is not None
    assert found["tables"][0]["is_plain"] is is_plain


def frozen(model: Scored) -> Iterable[nn.Parameter]:
    model.rows.weight.requires_grad_(False)
    return model.out.parameters()


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        ({"is_tied": True}, nn.Module.parameters),
        ({"rows": 1_000}, nn.Module.parameters),
        ({"sparse": True}, nn.Module.parameters),
        ({}, frozen),
    ],
    ids=["tied", "small", "sparse", "frozen"],
)
def test_what_is_none(
    recorder: Recorder, arguments: dict[str, Any], trained: Callable[[Any], Iterable[nn.Parameter]]
) -> None:
    start(recorder)
    model = Scored(**arguments)
    train(model, model, torch.optim.SGD(trained(model), lr=0.1))
    assert told(recorder) is None


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        torch.manual_seed(3)
        model = Scored()
        built = inspect.signature(nn.Embedding), inspect.signature(nn.Embedding.__init__)
        losses = train(model, model, torch.optim.Adam(model.parameters()))
        return losses, built, nn.Embedding.__init__.__qualname__, nn.Embedding.__doc__

    assert same_with_us(script, *default_probes())[0] == "returned"


def test_exceptions_look_the_same(same_with_us: Callable[..., Any]) -> None:
    assert same_with_us(lambda: nn.Embedding(-1, 3), *default_probes())[0] == "raised"
    wrong = same_with_us(lambda: nn.Embedding(3, 3, nonsense=1), *default_probes())
    assert wrong[0] == "raised"
