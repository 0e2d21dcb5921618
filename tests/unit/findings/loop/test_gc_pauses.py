"""Collections of garbage in the loop: Python's own, and those that it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import STEPS, healthy, with_summary
from support.findings import high_of, only, reported

from trainprof.findings.run_context import RunContext


def collecting(gc_s: float, full_collections: int = 0) -> RunContext:
    context = healthy(parts={"gc": gc_s})
    training = replace(context.summary.training, steps=STEPS)
    context = with_summary(context, training=training)
    return replace(context, full_collections=full_collections)


@pytest.mark.parametrize(
    ("full_collections", "cautions"), [(0, 1), (4, 1), (STEPS, 0)], ids=["none", "four", "called"]
)
def test_gc_pauses(full_collections: int, cautions: int) -> None:
    finding = only(collecting(0.5, full_collections))
    assert (finding.id, finding.is_at_most) == ("gc_pauses", True)
    assert finding.recoverable_s == pytest.approx(0.5)
    # A fifth goes; what remains may get faster by a quarter of that share.
    assert high_of(finding) == pytest.approx(1.25 / 0.95, rel=0.05)
    assert len(finding.cautions) == cautions


@pytest.mark.parametrize(
    "context", [collecting(0.05), collecting(0.5, 2)], ids=["little", "two walks are no habit"]
)
def test_collections_that_are_no_finding(context: RunContext) -> None:
    assert reported(context) == []
