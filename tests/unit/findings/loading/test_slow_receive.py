"""Batches that are there in time, and take long to be handed over."""

from __future__ import annotations

from typing import Any

import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of
from support.findings import finding_of, only

from trainprof.analysis.pipeline.bounds import Interval


def receiving(cpu_s: float = 0.001, runnable: float = 0.0, **loader: Any) -> Planted:
    """Batches of which each takes 20 ms to be handed over."""
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, receive_s=Interval.exactly(0.02))
    return planted.having(
        fetch={"runnable_s": runnable * 0.004 * STEPS},
        receive_s=0.02 * STEPS,
        receive_cpu_s=cpu_s * STEPS,
        **loader,
    )


@pytest.mark.parametrize(
    ("planted", "site", "waits"),
    [
        pytest.param(receiving(0.019), "train.py:41", False, id="the training process works"),
        pytest.param(
            receiving(0.019, collate_site="data.py:30"), "data.py:30", False, id="collate"
        ),
        pytest.param(receiving(), "train.py:41", True, id="the worker answers late"),
        pytest.param(receiving(kind="StatefulDataLoader"), "train.py:41", True, id="with state"),
    ],
)
def test_slow_receive(planted: Planted, site: str, waits: bool) -> None:
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.is_at_most) == ("slow_receive", site, True)
    assert finding.evidence["receive_per_batch_s"] == pytest.approx(0.02, rel=0.05)
    assert bool(finding.also) is waits


@pytest.mark.parametrize(
    ("runnable", "is_disturbed", "cpu_s", "is_reported"),
    [
        (0.0, False, 0.001, True),  # the worker answers late
        (0.3, False, 0.001, False),
        (0.0, True, 0.001, False),
        (0.3, True, 0.019, True),  # many small tensors, on a loaded machine too
    ],
)
def test_waiting_for_a_core_is_no_cost_of_receiving(
    runnable: float, is_disturbed: bool, cpu_s: float, is_reported: bool
) -> None:
    cpu = summaries.system().cpu
    if is_disturbed:
        busy = {"host_percent": {"mean": 90.0}, "tree_percent": {"mean": 80.0}}
        cpu = {**cpu, **busy, "pressure_some_share": 0.9}
    context = case_of(receiving(cpu_s, runnable), system=summaries.system(cpu=cpu))
    assert (finding_of("slow_receive", context) is not None) is is_reported
