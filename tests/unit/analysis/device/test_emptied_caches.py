"""Emptied caches of a device: what the calls take, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.device_run import DeviceRun
from support.events import MS, US

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import Kind

STEPS = 120


def trained(directory: Path, *, every: int, takes: int, again: int) -> RunSummary:
    """A training that empties the cache every few steps, after which the forward is slower."""
    run = DeviceRun()
    run.start()
    here = run.run.site(80)
    for number in range(STEPS):
        run.next(50 * US)
        is_after = number > 0 and number % every == 0
        launch = 2 * MS + again * is_after
        run.phase(Kind.FORWARD, launch, 500 * US, pieces=20)
        run.phase(Kind.BACKWARD, 2 * MS, 500 * US, pieces=20)
        run.phase(Kind.OPTIMIZER_STEP, 200 * US, 10 * US)
        if number % every == every - 1:
            with run.doing("host_s"):
                run.stream.waits()
                run.run.leaf(Kind.CACHE_EMPTIED, takes, site=here)
    run.stop()
    run.run.leaf(Kind.CACHE_EMPTIED, 900 * MS, site=run.run.site(99))
    return run.run.summary(directory)


def test_calls_in_each_step_are_found_and_explain_slow_launches(tmp_path: Path) -> None:
    summary = trained(tmp_path, every=1, takes=2 * MS, again=3 * MS)
    assert summary.emptied_caches[0].site == "train.py:80"
    assert summary.emptied_caches[0].count == STEPS
    assert summary.emptied_caches[0].seconds == pytest.approx(STEPS * 2e-3)
    assert summary.emptied_caches[0].idle_s == pytest.approx(STEPS * 2e-3, rel=0.05)
    first = summary.findings[0]
    assert (first.id, first.site) == ("exposed_syncs", "train.py:80")
    # Without the calls, and what they make later: 4.25 of 9.25 ms.
    assert first.predicted_speedup[1] >= 9.25 / 4.25
    assert first.also
    assert {finding.id for finding in summary.findings}.isdisjoint(
        {"launch_bound", "python_in_loop"}
    )
    assert [
        finding.root for finding in summary.passed_over if finding.finding.id == "launch_bound"
    ] == ["exposed_syncs"]


def test_what_a_call_waits_for_the_device_costs_nothing(tmp_path: Path) -> None:
    """The host is ahead by several steps: the device works on meanwhile."""
    run = DeviceRun()
    run.start()
    here = run.run.site(80)
    for number in range(STEPS):
        run.next(50 * US)
        run.learn(1 * MS, 2 * MS, 1 * MS)
        if number % 5 == 4:
            waits_ns = max(run.stream.idle_from - run.run.now, 0)
            with run.doing("host_s"):
                run.run.leaf(Kind.CACHE_EMPTIED, waits_ns + 50 * US, site=here)
                run.stream.look()
    run.stop()
    summary = run.run.summary(tmp_path)
    (line,) = summary.emptied_caches
    assert line.seconds > 0.5 * summary.phases.training_s
    assert line.idle_s < 0.02 * summary.phases.training_s
    assert summary.findings == []
