"""Which tables of embeddings are told of, and what their gradients take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.call_site import CallSites
from trainprof.probes.catalogue import default_probes
from trainprof.probes.embedding_tables import EmbeddingTablesProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
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


@pytest.fixture(autouse=True)
def users_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files that are imported, this one is the user's."""
    here = str(Path(__file__))
    monkeypatch.setattr(CallSites, "is_user_file", lambda self, file: file == here)


def told(recorder: Recorder) -> dict[str, Any] | None:
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "embedding_tables" in x]
    last: dict[str, Any] | None = notes[-1]["embedding_tables"] if notes else None
    return last


def start(recorder: Recorder) -> None:
    probes = [EmbeddingTablesProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe()]
    recorder.start(*probes, now=CLOCK)


class Scored(nn.Module):
    """Looks up rows, and multiplies them: with the table itself where weights are tied."""

    def __init__(self, rows: int = ROWS, is_tied: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, WIDTH, **arguments)
        self.out, self.is_tied = nn.Linear(WIDTH, 1), is_tied

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
    assert (found["numbers"], found["looks"]) == (ROWS * WIDTH + WIDTH + 1, 8)
    file, line, _ = recorder.read().texts[one["site"]][1].strip("[]").split(", ", 2)
    lines, first = inspect.getsourcelines(Scored)
    [built] = [first + at for at, text in enumerate(lines) if "nn.Embedding(rows" in text]
    assert file.endswith('test_embedding_tables.py"')
    assert int(line) == built


@pytest.mark.parametrize("is_read", [True, False])
def test_whether_the_script_reads_gradients_is_told_with_them(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """As clipping by hand does: sparse ones do not take all that whole ones do."""
    monkeypatch.setattr(
        "trainprof.probes.embedding_tables.reads_gradients", lambda is_user_file: is_read
    )
    start(recorder)
    model = Scored()
    train(model, model, torch.optim.Adam(model.parameters()))
    found = told(recorder)
    assert found is not None
    assert found["reads_gradients"] is is_read


def test_a_table_whose_line_is_not_plain_is_told_by_its_models_call(recorder: Recorder) -> None:
    start(recorder)
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))  # one of several lines
    train(model, model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = told(recorder)
    assert found is not None
    line = int(recorder.read().texts[found["tables"][0]["site"]][1].split(", ")[1])
    assert "forward(" in Path(__file__).read_text().splitlines()[line - 1]


def test_what_is_told_goes_with_its_model(recorder: Recorder) -> None:
    start(recorder)
    first = Scored()
    train(first, first, torch.optim.SGD(first.parameters(), lr=0.1))
    other = Scored(rows=1_000)
    train(other, other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert told(recorder) is None


def test_a_table_that_another_pass_goes_back_to_as_a_whole_is_none(recorder: Recorder) -> None:
    start(recorder)
    model = Scored()

    def forward(x: torch.Tensor) -> torch.Tensor:
        (1e-4 * model.rows.weight.square().sum()).backward()
        found: torch.Tensor = model(x)
        return found

    train(model, forward, torch.optim.SGD(model.parameters(), lr=0.1))
    assert told(recorder) is None


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
        ({"scale_grad_by_freq": True}, nn.Module.parameters),
        ({}, frozen),
    ],
    ids=["tied", "small", "sparse", "scaled", "frozen"],
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
        return train(model, model, torch.optim.Adam(model.parameters()))

    assert same_with_us(script, *default_probes())[0] == "returned"


def test_torch_may_swap_what_was_looked_at(recorder: Recorder) -> None:
    """It swaps no tensor that somebody refers to, even weakly."""
    start(recorder)
    model = Scored()
    train(model, model, torch.optim.Adam(model.parameters()))
    for parameter in model.parameters():
        parameter.grad = None
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().half()))
    assert told(recorder) is not None
