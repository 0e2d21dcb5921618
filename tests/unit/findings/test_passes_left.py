"""Passes that are left by `break`: what workers that live on would still make for them."""

from __future__ import annotations

from typing import Any

from support.cases import Planted, case_of

from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose

PASSES = 10


def behind(left: int, **changes: Any) -> Planted:
    """Two workers that are 25 ms late with each batch, and take 200 ms to start."""
    plain = {"workers": 2, "fetch_s": 0.06, "compute_s": 0.005, "start_s": 0.2, "passes": PASSES}
    return Planted(**plain | changes, left=left)


def workers_for(planted: Planted) -> Finding:
    [findings] = [
        finding
        for finding in diagnose(case_of(planted)).findings
        if "num_workers" in finding.change
    ]
    return findings


def test_new_workers_live_on_only_where_passes_end():
    serial = {"workers": 0, "fetch_s": 0.5, "running": 1.0, "compute_s": 0.01, "cores": 2.0}
    ended, left = (workers_for(behind(n, **serial, start_s=0.0)) for n in (0, 1000))
    assert ended.change["persistent_workers"] is True
    assert left.change == {"num_workers": ended.change["num_workers"]}
