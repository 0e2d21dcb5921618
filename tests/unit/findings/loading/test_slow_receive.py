"""Batches that are there in time, and take long to be handed over."""

from __future__ import annotations

from typing import Any

from support import summaries
from support.cases import STEPS, Planted, case_of
from support.findings import is_silent, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.findings.run_context import RunContext


def receiving(
    cpu_s: float = 0.001,
    runnable: float = 0.0,
    is_disturbed: bool = False,
    tensors: float | None = None,
    **loader: Any,
) -> RunContext:
    """Batches of which each takes 20 ms to be handed over."""
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, receive_s=Interval.exactly(0.02))
    planted.having(
        fetch={"runnable_s": runnable * 0.004 * STEPS, "batch_tensors": tensors},
        receive_s=0.02 * STEPS,
        receive_cpu_s=cpu_s * STEPS,
        **loader,
    )
    system = summaries.disturbed_system() if is_disturbed else summaries.system()
    return case_of(planted, system=system)


EACH: dict[str, Any] = {"receive_per_batch_s": 0.02, "is_at_most": True}

test_slow_receive = reports(
    "slow_receive",
    {
        "the training process works": row(receiving(0.019), **EACH),
        "its collate function": row(receiving(0.019, collate_site="data.py:30"), "data.py:30"),
        "the worker answers late": row(receiving(), **EACH),
        "the worker answers late, of many tensors": row(receiving(tensors=60.0), **EACH),
        "few tensors, many objects": row(receiving(0.019, tensors=2.0), **EACH),
        "with state": row(receiving(kind="StatefulDataLoader"), **EACH),
        "small tensors on a loaded machine": row(receiving(0.019, 0.3, True), is_only=False),
    },
)
# Waiting for a core is no cost of receiving.
test_others = is_silent(
    "slow_receive",
    {
        # A worker at work, or copying pages: no fewer tensors would help.
        "two tensors": receiving(tensors=2.0),
        "no core": receiving(0.001, 0.3),
        "other programs": receiving(0.001, 0.0, True),
    },
)
