"""Tables with whole gradients, and what sparse ones give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, noted
from support.findings import finding_of, only

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.finding import LIKELY
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTable, EmbeddingTablesNote
from trainprof.findings.run_context import RunContext

TABLE = {"rows": 100_000, "numbers": 6_400_000, "indices": 128, "site": 1}


def updating(
    table: dict[str, Any], optimizer_s: float = 1.0, numbers: int = 6_400_100, **settings: Any
) -> RunContext:
    values: dict[str, Any] = {**TABLE, **table}
    note = EmbeddingTablesNote((EmbeddingTable(**values),), numbers)
    return case_of(
        Planted(workers=2, fetch_s=0.001, compute_s=0.01),
        parts={"optimizer": optimizer_s},
        torch=TorchSettings(**settings),
        notes=noted(note, places=("model.py:7",)),
    )


@pytest.mark.parametrize("is_plain", [True, False])
def test_dense_embeddings(is_plain: bool) -> None:
    context = updating({"is_plain": is_plain})
    finding = only(context)
    assert (finding.id, finding.site) == ("dense_embeddings", "model.py:7")
    assert len(finding.cautions) == (1 if is_plain else 2)
    left_s = context.training_s - context.training["optimizer"]
    assert finding.evidence[LIKELY] == pytest.approx(context.training_s / left_s, rel=0.05)


@pytest.mark.parametrize(
    "context",
    [
        updating({"indices": 20_000}),
        updating({"indices": 0}),
        updating({}, optimizer_s=0.05),
        updating({}, numbers=10**9),
        updating({}, is_data_parallel=True),
        replace(updating({}), clips_gradients=True),
        updating({"rows": None, "indices": "many"}),
    ],
    ids=["many", "none", "quick", "a small part", "ranks", "clipped", "nonsense"],
)
def test_others(context: RunContext) -> None:
    assert finding_of("dense_embeddings", context) is None
