"""Tables with whole gradients, and what sparse ones give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cases import Planted, case_of, noted
from support.findings import is_silent, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTable, EmbeddingTablesNote
from trainprof.findings.run_context import RunContext


def updating(
    optimizer_s: float = 1.0,
    numbers: int = 6_400_100,
    settings: TorchSettings | None = None,
    **table: Any,
) -> RunContext:
    """A run of 3 s."""
    values = {"rows": 100_000, "numbers": 6_400_000, "indices": 128, "site": 1, **table}
    return case_of(
        Planted(workers=2, fetch_s=0.001, compute_s=0.01),
        parts={"optimizer": optimizer_s},
        torch=settings,
        notes=noted(
            EmbeddingTablesNote((EmbeddingTable(**values),), numbers), places=("net.py:7",)
        ),
    )


test_dense_embeddings = reports(
    "dense_embeddings",
    {
        "plain": row(updating(is_plain=True), "net.py:7", likely=3 / 2, rel=0.05),
        "with moments": row(updating(is_plain=False), "net.py:7", likely=3 / 2, rel=0.05),
    },
)
test_others = is_silent(
    "dense_embeddings",
    {
        "many": updating(indices=20_000),
        "none": updating(indices=0),
        "quick": updating(0.05),
        "a small part": updating(numbers=10**9),
        "ranks": updating(settings=TorchSettings(is_data_parallel=True)),
        "clipped": replace(updating(), clips_gradients=True),
        "nonsense": updating(rows=None, indices="many"),
    },
)
