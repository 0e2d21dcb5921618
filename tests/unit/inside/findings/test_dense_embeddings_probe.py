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
    """May take fractions for numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.items(x.long())  # type: ignore[no-any-return]


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
    {"is_tied": True},
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
    assert (table["rows"], table["numbers"], table["indices"]) == (ROWS, ROWS * WIDTH, BATCH)
    assert (table["optimizer"], table["is_plain"]) == (name, is_plain)
    assert note["numbers"] == ROWS * WIDTH + WIDTH + 1
    lines, first = inspect.getsourcelines(Scored)
    assert "nn.Embedding(rows" in lines[line_of(recorder, note) - first]


def test_a_table_whose_line_is_not_plain_has_that_of_its_models_call(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))
    line = line_of(recorder, tables(recorder, model, sgd(model)))
    assert "loss = model(" in Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("make", "optimizer", "kind"),
    [
        *((partial(Scored, **options), sgd, torch.int64) for options in OTHER_TABLES),
        (Scored, lambda model: sgd(model.out), torch.int64),  # frozen
        (Compared, sgd, torch.float32),  # what is looked up is not known
        (Compared, sgd, torch.int64),
    ],
)
def test_what_does_not_count(
    recorder: Recorder,
    make: Callable[[], nn.Module],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    kind: torch.dtype,
) -> None:
    model = make()
    counts = type(model) is Compared and kind is torch.int64
    assert bool(tables(recorder, model, optimizer(model), kind)["tables"]) is counts


@pytest.mark.parametrize(
    ("text", "reads_gradients", "counts"),
    [
        ("h @ self.TABLE.weight.T", False, False),  # the script computes with it
        ("nn.init.normal_(self.TABLE.weight)", False, True),
        ("self.TABLE.weight.data.uniform_()", False, True),
        ("otherTABLE.weight", False, True),
        ("", True, False),
    ],
)
def test_a_weight_that_the_script_may_need_as_it_is(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    reads_gradients: bool,
    counts: bool,
) -> None:
    own = text.replace("TABLE", "rows")  # this file is looked at in other tests
    monkeypatch.setattr(
        probe_file, "lines_with", lambda _, pattern: [("a.py", 1)] if pattern.search(own) else []
    )
    monkeypatch.setattr(probe_file, "reads_gradients", lambda _: reads_gradients)
    model = Scored()
    assert bool(tables(recorder, model, sgd(model))["tables"]) is counts


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        torch.manual_seed(3)
        model = Scored()
        return train(model, torch.optim.Adam(model.parameters()))

    assert same_with_us(script)[0] == "returned"
