"""Cores that making batches and computing with them share, from planted batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of, with_summary
from support.findings import finding_of, high_of, hot_line, only

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY
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
        alone_s: To compute with a batch while workers idle.
        alone: Which batches are.
        runnable: Share of a batch's making that waits for a core.
        each_tenth_s: What each tenth batch takes longer.
        device: That computes.
        cause: Why training waits.
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


@pytest.mark.parametrize("cause", [None, UNKNOWN])
def test_computing_that_takes_twice_as_long_beside_workers(cause: str | None) -> None:
    finding = finding_of("saturated_cpu", beside(cause=cause))
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
    assert finding_of("saturated_cpu", beside(**healthy)) is None


@pytest.mark.parametrize(
    ("own", "host", "is_reported"), [(190.0, 95.0, True), (150.0, 99.9, False)]
)
def test_of_workers_that_are_never_idle_the_model_is_asked(
    own: float, host: float, is_reported: bool
) -> None:
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
    context = replace(context, feeding=[replace(feeder, inputs=inputs)])
    context = with_summary(context, system=summaries.system(cpu=cpu))
    assert (finding_of("saturated_cpu", context) is not None) is is_reported


FULL: dict[str, Any] = {"fetch_s": 0.08, "running": 1.0, "compute_s": 0.01, "cores": 2}


def short_of_cores() -> Planted:
    """Others take the cores, too: the run's own work would not fill them."""
    planted = Planted(workers=2, fetch_s=0.08, running=0.5, compute_s=0.005, cores=2)
    return planted.having(
        fetch={"runnable_s": 0.4 * 0.08 * STEPS, "asleep_s": 0.0},
        inputs={"runnable_s": planted.inputs.fetch_s * 0.5},
    )


def that_answers_late() -> Planted:
    """A worker that computes takes long to hand its batches over."""
    receiving = {"receive_s": Interval.exactly(0.02)}
    planted = Planted(workers=2, **{**FULL, "fetch_s": 0.07, "compute_s": 0.005}, **receiving)
    return planted.having(receive_s=0.02 * STEPS, receive_cpu_s=0.001 * STEPS)


@pytest.mark.parametrize(
    ("planted", "site", "times"),
    [
        pytest.param(
            Planted(workers=2, **FULL).having(hot_lines=[hot_line("making batches")]),
            *("data.py:12", 3.0),
            id="its line",
        ),
        pytest.param(
            Planted(fetch_s=0.03, running=1.0, compute_s=0.03, cores=1),
            *("train.py:41", 1.5),
            id="one core, no workers",
        ),
        # Without running nobody waits for a core: nothing is left of making batches.
        pytest.param(short_of_cores(), "train.py:41", 6.0, id="long waits for a core"),
        pytest.param(that_answers_late(), "train.py:41", 3.0, id="a worker that answers late"),
    ],
)
def test_saturated_cpu(planted: Planted, site: str, times: float) -> None:
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.change) == ("saturated_cpu", site, {})
    assert finding.is_at_most
    assert high_of(finding) > times
