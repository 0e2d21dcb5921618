"""Collections of garbage in the loop: Python's own, and those that it asks for."""

from __future__ import annotations

from dataclasses import replace

from support.cases import STEPS, healthy, with_summary
from support.findings import is_silent, reports, row

from trainprof.findings.run_context import RunContext


def collecting(gc_s: float, full_collections: int) -> RunContext:
    context = healthy(parts={"gc": gc_s})
    training = replace(context.summary.training, steps=STEPS)
    return replace(with_summary(context, training=training), full_collections=full_collections)


# A fifth goes; what remains may get faster by a quarter of that share.
GOES = {"saved_s": 0.5, "is_at_most": True, "high": (1.25, 1.38)}

test_gc_pauses = reports(
    "gc_pauses",
    {
        "by itself": row(collecting(0.5, 4), None, **GOES),
        "called": row(collecting(0.5, STEPS), None, cautions=[], **GOES),
    },
)
test_collections_that_are_no_finding = is_silent(
    "gc_pauses", {"little": collecting(0.05, 0), "two are no habit": collecting(0.5, 2)}
)
