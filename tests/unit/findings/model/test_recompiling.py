"""Code that torch.compile compiles again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cases import Planted, case_of
from support.findings import is_silent, reports, row

from trainprof.analysis.summary.code import Compilation
from trainprof.findings.run_context import RunContext


def compiled(again: int, again_s: float, versions: int = 4, **changes: Any) -> Compilation:
    plain = Compilation("train.py:60", again + 2, again_s + 3.0, again, again_s, versions)
    return replace(plain, **changes)


def run_with(*known: Compilation) -> RunContext:
    """4 s of training."""
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.02)
    return case_of(planted, compilations=[*known])


OTHER = compiled(1, 0.2, site="train.py:50")
AT = ("train.py:60",)
ALL: dict[str, Any] = {"saved_s": 1.5, "likely": 1 / (1 - 1.5 / 4.0), "is_at_most": True}

test_recompiling = reports(
    "recompiling",
    {
        "two lines": row(run_with(OTHER, compiled(3, 1.3)), *AT, again=4, **ALL),
        "at torch's limit": row(run_with(compiled(7, 1.5, 8)), *AT, again=7, **ALL),
        "shapes": row(run_with(compiled(7, 1.5, again_for=["shape"])), *AT, **ALL),
        "a number": row(run_with(compiled(7, 1.5, again_for=["number"])), *AT, **ALL, cautions=[]),
    },
)
test_compiling_that_is_no_fault = is_silent(
    "recompiling",
    {
        "once": run_with(compiled(0, 0.0)),
        "one more version": run_with(compiled(1, 1.5)),
        "a small part": run_with(compiled(2, 0.15)),
    },
)
