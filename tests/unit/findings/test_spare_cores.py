"""More workers are advised where a core is free for them, or fetches mostly sleep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.findings.diagnose import diagnose

COMPUTES, SLEEPS = 1.0, 0.1
# Another program on the only core: each of the two has half of it, and waits for as long.
BESIDE_ANOTHER: dict[str, Any] = {
    "others": Interval(0.5, 1.0, 2.0),
    "runnable_s": np.full(STEPS, 0.01),
    "fetch_slowdown": 1.0,
    "main_slowdown": 1.0,
}


@pytest.mark.parametrize(
    ("running", "cores", "taken", "is_advised"),
    [
        (COMPUTES, 1, 0.0, False),
        (SLEEPS, 1, 0.0, True),
        (COMPUTES, 4, 0.0, True),
        (COMPUTES, 4, 1.0, True),
        (COMPUTES, 4, 3.5, False),
        (SLEEPS, 2, 1.5, True),
    ],
)
def test_workers_need_a_core(running: float, cores: int, taken: float, is_advised: bool) -> None:
    planted = Planted(fetch_s=0.02, running=running, compute_s=0.01, cores=float(cores))
    assert is_advised_workers(planted, cores, taken) is is_advised


def test_workers_that_only_take_a_core_from_other_programs_are_not_advised() -> None:
    planted = Planted(fetch_s=0.02, running=0.5, compute_s=0.01, cores=1.0, **BESIDE_ANOTHER)
    assert not is_advised_workers(planted, 1, 0.5)


def is_advised_workers(planted: Planted, cores: int, taken: float) -> bool:
    """Whether a finding sets more workers, where other programs keep cores busy."""
    system = summaries.healthy().system
    assert system is not None
    host = 100 * (taken + 0.1) / cores
    cpu = {
        "cores_usable": float(cores),
        "per_core_percent": [host] * cores,
        "host_percent": {"mean": host},
        "tree_percent": {"mean": 10.0},
        "pressure_some_share": 0.5,
    }
    findings = diagnose(case_of(planted, system=replace(system, cpu=cpu))).findings
    assert findings
    is_set = any(finding.change.get("num_workers") for finding in findings)
    assert is_set or not any("num_workers=" in finding.advice for finding in findings)
    return is_set
