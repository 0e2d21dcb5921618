"""Passes that are left by `break`: what workers that live on would still make for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.worker_restart import lost_s
from trainprof.analysis.finding import Finding

PASSES = 10


def behind(left: int, **changes: Any) -> Planted:
    """Two workers that are 25 ms late with each batch, and take 200 ms to start."""
    plain = {"workers": 2, "fetch_s": 0.06, "compute_s": 0.005, "start_s": 0.2, "passes": PASSES}
    return Planted(**plain | changes, left=left)


def restart(case: Case) -> Finding:
    [told] = [one for one in diagnose(case).findings if one.id == "worker_restart"]
    return told


def test_passes_that_are_left_want_one_iterator():
    finding = restart(case_of(behind(1000)))
    assert finding.advice.startswith("one iterator, batches = iter(loader)")
    assert finding.change == {}
    assert finding.title.endswith("; each is left after 20 batches")
    # The start, and but for the half of one the first batch.
    assert finding.recoverable_s == pytest.approx((PASSES - 1) * (0.2 + 0.03), rel=0.05)
    [why] = [one for one in finding.also if one.startswith("with persistent_workers=True alone")]
    assert "up to 4 batches that the one before had asked for" in why
    assert any("goes on where the one before was left" in one for one in finding.cautions)
    assert not any("shuffling draws other numbers" in one for one in finding.cautions)


def test_passes_that_end_want_their_workers_kept():
    finding = restart(case_of(behind(0)))
    assert finding.change == {"persistent_workers": True}
    assert "left" not in finding.title
    assert finding.recoverable_s == pytest.approx((PASSES - 1) * 0.2, rel=0.05)


def test_workers_that_are_kept_will_do_where_batches_are_there():
    planted = behind(1000, fetch_s=0.004, compute_s=0.04)
    finding = restart(case_of(planted))
    assert finding.change == {"persistent_workers": True}
    assert finding.recoverable_s == pytest.approx((PASSES - 1) * 0.2, rel=0.05)


def test_what_is_gained_is_no_more_than_what_is_left_of_it():
    kept, left = (
        lost_s(case_of(behind(n, role="evaluation", start_s=0.3)).evaluating[0]) for n in (0, 1000)
    )
    # An evaluation has the same samples each time: its iterator is not kept.
    assert kept == pytest.approx((PASSES - 1) * 0.3, rel=0.05)
    assert (PASSES - 1) * 0.06 <= kept - left <= (PASSES - 1) * 2 * 0.06


def test_a_loader_that_is_built_anew_is_built_once_first():
    planted = behind(1000)
    planted.loader = replace(planted.loader, built=PASSES)
    told = restart(case_of(planted)).advice
    assert told.startswith("build it once, ahead of all passes, then one iterator")
    planted.loader = replace(planted.loader, datasets=PASSES)
    assert "one dataset and one loader for all" in restart(case_of(planted)).advice


def workers_for(planted: Planted) -> Finding:
    [told] = [one for one in diagnose(case_of(planted)).findings if "num_workers" in one.change]
    return told


def test_new_workers_are_to_live_on_only_where_that_is_shorter():
    serial = {"workers": 0, "fetch_s": 0.5, "compute_s": 0.01, "start_s": 0.0, "cores": 2.0}
    serial["running"] = 1.0
    ended, left = workers_for(behind(0, **serial)), workers_for(behind(1000, **serial))
    assert ended.change["persistent_workers"] is True
    assert left.change == {"num_workers": ended.change["num_workers"]}
    slow_to_start = behind(1000, **serial | {"start_s": 3.0})
    assert workers_for(slow_to_start).change["persistent_workers"] is True


def test_the_run_gains_no_more_than_resuming_leaves():
    slow_to_start = {"workers": 1, "start_s": 1.0}
    ended, left = (workers_for(behind(n, **slow_to_start)) for n in (0, 1000))
    assert left.change == ended.change
    assert "persistent_workers" in left.change
    assert left.run_speedup is not None
    assert ended.run_speedup is not None
    assert left.run_speedup[1] < ended.run_speedup[1]
