"""Which tables of embeddings are told of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch import nn

from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesProbe
from trainprof.inside.catalogue import default_probes
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

ROWS, WIDTH, BATCH = 20_000, 8, 16


class Scored(nn.Module):
    """Looks up rows, with the table of a layer behind it where weights are tied."""

    def __init__(self, rows: int = ROWS, is_tied: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, WIDTH, **arguments)
        self.out = nn.Linear(WIDTH, rows if is_tied else 1)
        if is_tied:
            self.out.weight = getattr(self.rows, "weight")  # noqa: B009

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows(x))  # type: ignore[no-any-return]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, kind: torch.dtype = torch.int64
) -> list[float]:
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(torch.randint(0, 1_000, (BATCH,)).to(kind)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def users_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files that are imported, this one is the user's."""
    here = str(Path(__file__))
    monkeypatch.setattr(CallSites, "is_user_file", lambda self, file: file == here)
    monkeypatch.setattr(
        "trainprof.findings.model.dense_embeddings.probe.reads_gradients", lambda _: False
    )


def start(recorder: Recorder) -> None:
    recorder.start(EmbeddingTablesProbe(), ForwardProbe(), OptimizerProbe())


def told(recorder: Recorder) -> dict[str, Any]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "embedding_tables" in x]
    return notes[-1]["embedding_tables"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("settings", "name", "is_plain"),
    [
        ({}, "SGD", True),
        ({"momentum": 0.9}, "SGD", False),
        ({"weight_decay": 0.1}, "SGD", False),
        ({}, "Adagrad", True),
        ({}, "Adam", False),
    ],
)
def test_a_table_is_told_with_its_line_and_what_changes_it(
    recorder: Recorder, settings: dict[str, float], name: str, is_plain: bool
) -> None:
    start(recorder)
    model = Scored()
    train(model, getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings))
    found = told(recorder)
    [one] = found["tables"]
    assert (one["rows"], one["numbers"], one["indices"]) == (ROWS, ROWS * WIDTH, BATCH)
    assert (one["optimizer"], one["is_plain"]) == (name, is_plain)
    assert found["numbers"] == ROWS * WIDTH + WIDTH + 1
    line = int(recorder.read().texts[one["site"]][1].split(", ")[1])
    lines, first = inspect.getsourcelines(Scored)
    assert "nn.Embedding(rows" in lines[line - first]


def test_a_table_whose_line_is_not_plain_is_told_by_its_models_call(recorder: Recorder) -> None:
    start(recorder)
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    line = int(recorder.read().texts[told(recorder)["tables"][0]["site"]][1].split(", ")[1])
    assert "loss = model(" in Path(__file__).read_text().splitlines()[line - 1]


def test_what_is_told_goes_with_its_model(recorder: Recorder) -> None:
    start(recorder)
    for model in (Scored(), Scored(rows=1_000)):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert told(recorder)["tables"] == []


def frozen(model: Scored) -> Iterable[nn.Parameter]:
    return model.out.parameters()


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        ({"is_tied": True}, nn.Module.parameters),
        ({"rows": 1_000}, nn.Module.parameters),
        ({"sparse": True}, nn.Module.parameters),
        ({"scale_grad_by_freq": True}, nn.Module.parameters),
        ({"max_norm": 1.0}, nn.Module.parameters),
        ({}, frozen),
    ],
    ids=["tied", "small", "sparse", "scaled", "kept short", "frozen"],
)
def test_what_is_none(
    recorder: Recorder, arguments: dict[str, Any], trained: Callable[[Any], Iterable[nn.Parameter]]
) -> None:
    start(recorder)
    model = Scored(**arguments)
    train(model, torch.optim.SGD(trained(model), lr=0.1))
    assert told(recorder)["tables"] == []


class Compared(nn.Module):
    """Takes fractions for numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)
        nn.init.normal_(self.items.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.items(x.long())  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_nothing_is_told_where_nobody_knows_what_is_looked_up(
    recorder: Recorder, kind: torch.dtype
) -> None:
    start(recorder)
    model = Compared()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), kind)
    assert bool(told(recorder)["tables"]) is (kind is torch.int64)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("h @ self.TABLE.weight.T", False),
        ("nn.init.normal_(self.TABLE.weight)", True),
        ("self.TABLE.weight.data.uniform_()", True),
        ("otherTABLE.weight", True),
    ],
)
def test_a_weight_that_the_script_computes_with_is_none(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, text: str, is_told: bool
) -> None:
    own = text.replace("TABLE", "rows")  # this file is looked at in other tests
    monkeypatch.setattr(
        "trainprof.findings.model.dense_embeddings.probe.lines_with",
        lambda _, pattern: [("a.py", 1)] if pattern.search(own) else [],
    )
    start(recorder)
    model = Scored()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert bool(told(recorder)["tables"]) is is_told


def test_where_the_script_reads_gradients_nothing_is_told(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainprof.findings.model.dense_embeddings.probe.reads_gradients", lambda _: True
    )
    start(recorder)
    model = Scored()
    train(model, torch.optim.Adam(model.parameters()))
    assert told(recorder)["tables"] == []


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        torch.manual_seed(3)
        model = Scored()
        return train(model, torch.optim.Adam(model.parameters()))

    assert same_with_us(script, *default_probes())[0] == "returned"
