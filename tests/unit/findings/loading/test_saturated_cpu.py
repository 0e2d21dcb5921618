"""Cores that making batches and computing with them share, from planted batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support import summaries
from support.cases import STEPS, Planted, case_of, with_summary
from support.findings import hot_line, is_silent, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import PREPARATION
from trainprof.findings.loading.waiting import SAMPLING, UNKNOWN, Cause
from trainprof.findings.run_context import RunContext

PASSES = 2
IN_PASS = STEPS // PASSES
# Before the last batch of each epoch.
AT_ENDS = [epoch * IN_PASS + at for epoch in range(PASSES) for at in range(IN_PASS - 11, IN_PASS)]


def beside(
    *,
    alone_s: float = 0.01,
    alone: list[int] = AT_ENDS,
    runnable: float = 0.4,
    each_tenth_s: float = 0.0,
    device: str = "cpu",
    cause: str | None = None,
) -> RunContext:
    """Two workers that make a batch in less time than the 20 ms that one is computed with.

    Args:
        alone_s: To compute with a batch while workers idle; `alone`: which batches are.
        runnable: Share of a batch's making that waits for a core.
        each_tenth_s: What each tenth batch takes longer.
    """
    planted = Planted(
        workers=2, fetch_s=0.012, running=0.6, compute_s=0.02, passes=PASSES, is_persistent=True
    )
    compute_s, busy = np.full(STEPS, 0.02), np.full(STEPS, 1.5)
    compute_s[alone], busy[alone] = alone_s, 0.0
    compute_s[5::10] += each_tenth_s
    made_s = 0.012 * STEPS
    planted.having(
        fetch={"runnable_s": runnable * made_s, "asleep_s": (0.4 - runnable) * made_s},
        inputs={"compute_s": compute_s, "workers_busy": busy},
    )
    context = case_of(planted, device=device)
    feeder = replace(context.feeding[0], cause=None if cause is None else Cause(cause))
    return replace(context, feeding=[feeder])


def never_alone(own: float, host: float) -> RunContext:
    """The model is asked, unless other programs may be why all wait for cores."""
    context = beside(alone=[])
    [feeder] = context.feeding
    assert feeder.inputs is not None
    inputs = replace(
        feeder.inputs,
        cores=2.0,
        runnable_s=feeder.inputs.fetch_s * 0.4,
        compute_cores=Interval.exactly(2.0),
        main_slowdown=0.5,
    )
    cpu = {
        "tree_percent": {"mean": own},
        "host_percent": {"mean": host},
        "per_core_percent": [95.0, 95.0],
        "cores_usable": 2,
        "pressure_some_share": 0.5,
    }
    context = replace(context, feeding=[replace(feeder, inputs=inputs)])
    return with_summary(context, system=summaries.system(cpu=cpu))


def short_of_cores() -> Planted:
    """Others take the cores, too: the run's own work would not fill them."""
    planted = Planted(workers=2, fetch_s=0.08, running=0.5, compute_s=0.005, cores=2)
    return planted.having(
        fetch={"runnable_s": 0.4 * 0.08 * STEPS, "asleep_s": 0.0},
        inputs={"runnable_s": planted.inputs.fetch_s * 0.5},
    )


def bound(planted: Planted) -> RunContext:
    """The script bound itself to one core."""
    cpu = {"cores_usable": 1.0, "core_numbers": [0], "cores_launched_on": 2}
    return case_of(planted, system=summaries.system(cpu=cpu))


FULL = Planted(workers=2, fetch_s=0.08, running=1.0, compute_s=0.01, cores=2)
LINE = hot_line(PREPARATION)
ONE_CORE = Planted(fetch_s=0.03, running=1.0, compute_s=0.03, cores=1)
MOST: dict[str, Any] = {"change": {}, "is_at_most": True}
SAVED_S = 0.01 * (IN_PASS - 12) / (IN_PASS - 2)  # of a mean batch of 20 ms
TWICE = {**MOST, "likely": 0.019 / (0.019 - SAVED_S), "rel": 0.1, "is_only": False}

test_saturated_cpu = reports(
    "saturated_cpu",
    {
        "its line": row(FULL.having(hot_lines=[LINE]), "data.py:12", high=(3.0, 20.0), **MOST),
        "one core, no workers": row(ONE_CORE, high=(1.5, 20.0), **MOST),
        "bound to one core": row(bound(ONE_CORE), high=(1.5, 20.0), **MOST),
        # Without running nobody waits for a core: nothing is left of making batches.
        "long waits for a core": row(short_of_cores(), high=(6.0, 90.0), **MOST),
        "twice as long beside workers": row(beside(), **TWICE),
        "so for an unknown cause": row(beside(cause=UNKNOWN), **TWICE),
        "workers are never idle": row(never_alone(190.0, 95.0), is_only=False),
    },
)
test_cores_that_are_not_crowded = is_silent(
    "saturated_cpu",
    {
        "as long": beside(alone_s=0.02),
        "no waiting for cores": beside(runnable=0.05),
        "alone at the run's end only": beside(alone=AT_ENDS[-11:], runnable=0.2),
        "work that comes now and then": beside(alone_s=0.02, each_tenth_s=0.2),
        "a device computes on no core": beside(device="cuda"),
        "training waits for something else": beside(cause=SAMPLING),
        "other programs have them": never_alone(150.0, 99.9),
    },
)
