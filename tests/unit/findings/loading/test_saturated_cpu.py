"""Cores that making batches and computing with them share, from planted batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of
from support.found import hot_line

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.loading.waiting import SAMPLING, UNKNOWN, Cause
from trainprof.findings.run_context import RunContext

PASSES = 2
IN_PASS = STEPS // PASSES
# Before the last batch of each pass.
AT_ENDS = [pass_ * IN_PASS + at for pass_ in range(PASSES) for at in range(IN_PASS - 11, IN_PASS)]
FULL = {"workers": 2, "fetch_s": 0.08, "running": 1.0, "compute_s": 0.01, "cores": 2}


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
        alone_s: To compute with a batch while workers have nothing to do.
        alone: Which batches are.
        runnable: Share of a batch's making that waits for a core.
        each_tenth_s: What each tenth batch takes longer.
        device: That computes.
        cause: Why training waits.
    """
    value = Planted(
        workers=2, fetch_s=0.012, running=0.6, compute_s=0.02, passes=PASSES, is_persistent=True
    )
    compute_s, busy = np.full(STEPS, 0.02), np.full(STEPS, 1.5)
    compute_s[alone], busy[alone] = alone_s, 0.0
    compute_s[5::10] += each_tenth_s
    value.inputs = replace(value.inputs, compute_s=compute_s, workers_busy=busy)
    fetch = value.loader.fetch
    assert fetch is not None
    made_s = 0.012 * fetch.n
    fetch = replace(fetch, runnable_s=runnable * made_s, asleep_s=(0.4 - runnable) * made_s)
    value.loader = replace(value.loader, fetch=fetch)
    context = case_of(value, device=device)
    feeder = replace(context.feeding[0], cause=None if cause is None else Cause(cause))
    return replace(context, feeding=[feeder])


def found(context: RunContext) -> Finding | None:
    return next((x for x in diagnose(context).findings if x.id == "saturated_cpu"), None)


def test_cores_that_batches_fill() -> None:
    planted = Planted(**FULL)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = found(case_of(planted))
    assert finding is not None
    assert (finding.site, finding.change, finding.is_at_most) == ("data.py:12", {}, True)
    assert finding.evidence[LIKELY] > 3


@pytest.mark.parametrize("how", [{}, {"cause": UNKNOWN}])
def test_computing_that_takes_twice_as_long_beside_workers(how: dict[str, Any]) -> None:
    finding = found(beside(**how))
    assert finding is not None
    assert (finding.site, finding.change, finding.is_at_most) == ("train.py:41", {}, True)
    saved_s = 0.01 * (IN_PASS - 12) / (IN_PASS - 2)  # of a mean batch
    step_s = finding.evidence["batch_s"]
    assert finding.evidence[LIKELY] == pytest.approx(step_s / (step_s - saved_s), 0.05)


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param({"alone_s": 0.02}, id="as long"),
        pytest.param({"alone_s": 0.03}, id="longer alone"),
        pytest.param({"alone_s": 0.0195}, id="hardly longer"),
        pytest.param({"runnable": 0.05}, id="no waiting for cores"),
        pytest.param({"alone": AT_ENDS[-11:], "runnable": 0.2}, id="alone at the run's end only"),
        pytest.param({"alone": AT_ENDS[9:11] + AT_ENDS[-2:], "runnable": 0.2}, id="too few alone"),
        pytest.param({"alone": [0, IN_PASS - 1, IN_PASS, STEPS - 1]}, id="at borders of passes"),
        pytest.param({"alone_s": 0.02, "each_tenth_s": 0.2}, id="work that comes now and then"),
        pytest.param({"alone": [], "runnable": 0.2}, id="never alone and little waiting"),
        pytest.param({"device": "cuda"}, id="a device computes on no core"),
        pytest.param({"cause": SAMPLING}, id="training waits for something else"),
    ],
)
def test_cores_that_are_not_crowded(healthy: dict[str, Any]) -> None:
    assert found(beside(**healthy)) is None


@pytest.mark.parametrize(("own", "host"), [(190.0, 95.0), (150.0, 99.9)])
def test_workers_that_are_never_idle_are_told_by_the_model(own: float, host: float) -> None:
    """Unless other programs may be why all wait for cores."""
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
    summary = replace(context.summary, system=summaries.system(cpu=cpu))
    known = found(replace(context, summary=summary, feeding=[replace(feeder, inputs=inputs)]))
    assert (known is not None) is (own > 180)
