"""Which tables of embeddings are noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch import nn

from trainprof.findings.model.dense_embeddings import probe as probe_file
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesProbe
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


class Compared(nn.Module):
    """May take fractions for numbers of rows, and may compute with all of them."""

    def __init__(self, is_with_all: bool = False) -> None:
        super().__init__()
        self.items, self.is_with_all = nn.Embedding(ROWS, WIDTH), is_with_all

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.items(x.long())
        return rows @ self.items.weight.T if self.is_with_all else rows


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


OTHER_TABLES: tuple[dict[str, Any], ...] = (
    {"rows": 1_000},
    {"sparse": True},
    {"scale_grad_by_freq": True},
    {"max_norm": 1.0},
)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(autouse=True)
def users_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files that are imported, this one is the user's."""
    here = str(Path(__file__))
    monkeypatch.setattr(CallSites, "is_user_file", lambda self, file: file == here)
    monkeypatch.setattr(probe_file, "reads_gradients", lambda _: False)


def tables(
    recorder: Recorder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    kind: torch.dtype = torch.int64,
) -> dict[str, Any]:
    recorder.start(EmbeddingTablesProbe(), ForwardProbe(), OptimizerProbe())
    train(model, optimizer, kind)
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "embedding_tables" in x]
    return notes[-1]["embedding_tables"]  # type: ignore[no-any-return]


def line_of(recorder: Recorder, note: dict[str, Any]) -> int:
    return int(recorder.read().texts[note["tables"][0]["site"]][1].split(", ")[1])


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
def test_a_table_is_noted_with_its_line_and_what_changes_it(
    recorder: Recorder, settings: dict[str, float], name: str, is_plain: bool
) -> None:
    model = Scored()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings)
    note = tables(recorder, model, optimizer)
    [table] = note["tables"]
    assert (table["rows"], table["numbers"]) == (ROWS, ROWS * WIDTH)
    assert 0.7 * BATCH <= table["indices"] <= BATCH  # rows may be drawn twice
    assert (table["optimizer"], table["is_plain"]) == (name, is_plain)
    assert note["numbers"] == ROWS * WIDTH + WIDTH + 1
    lines, first = inspect.getsourcelines(Scored)
    assert "nn.Embedding(rows" in lines[line_of(recorder, note) - first]


def test_a_table_whose_line_is_not_plain_has_that_of_its_models_call(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))
    line = line_of(recorder, tables(recorder, model, sgd(model)))
    assert "loss = model(" in Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [
        *((partial(Scored, **options), sgd) for options in OTHER_TABLES),
        (Scored, lambda model: sgd(model.out)),  # not trained
    ],
)
def test_what_does_not_count(
    recorder: Recorder,
    make: Callable[[], nn.Module],
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    model = make()
    assert tables(recorder, model, optimizer(model))["tables"] == []


@pytest.mark.parametrize(
    ("make", "kind", "rows"),
    [
        (Compared, torch.int64, BATCH),
        (Compared, torch.float32, BATCH),
        (partial(Scored, is_tied=True), torch.int64, ROWS),
        (partial(Compared, is_with_all=True), torch.int64, ROWS),  # the script computes with it
    ],
)
def test_rows_are_those_that_have_a_gradient(
    recorder: Recorder, make: Callable[[], nn.Module], kind: torch.dtype, rows: int
) -> None:
    model = make()
    [table] = tables(recorder, model, sgd(model), kind)["tables"]
    assert 0.7 * rows <= table["indices"] <= rows


def test_none_is_noted_where_the_script_reads_gradients(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_file, "reads_gradients", lambda _: True)
    model = Scored()
    assert tables(recorder, model, sgd(model))["tables"] == []


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        torch.manual_seed(3)
        model = Scored()
        return train(model, torch.optim.Adam(model.parameters()))

    assert same_with_us(script)[0] == "returned"
