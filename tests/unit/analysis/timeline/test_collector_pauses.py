"""What the garbage collector takes inside a wait is no wait for data."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import MS, FakeRun

from trainprof.analysis.timeline.intervals import collections_on
from trainprof.record.schema import Kind


def test_pauses_count_by_what_of_them_lies_inside():
    run = FakeRun()
    began = run.now
    run.passes_time(100)
    run.leaf(Kind.GC, 20)
    run.passes_time(80)
    run.leaf(Kind.GC, 50)
    run.thread = 1
    run.leaf(Kind.GC, 1000)
    pauses = collections_on(0, run.events())
    start, end = np.array([0, 0, 105, 120, 90, 220]), np.array([50, 300, 110, 200, 225, 230])
    assert pauses.inside_ns(began + start, began + end).tolist() == [0, 70, 5, 0, 45, 10]
    none = collections_on(2, run.events())
    assert none.inside_ns(began + start, began + end).tolist() == [0] * 6


def test_a_collection_in_a_fetch_is_not_waited_for_as_data(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(1, 61):
        with run.span(Kind.LOADER_NEXT, site=loader, value=step), run.span(Kind.FETCH, value=32):
            run.passes_time(1 * MS)
            if step == 30:
                run.leaf(Kind.GC, 500 * MS)
        run.learn(optimizer, forward=2 * MS, backward=1 * MS, update=1 * MS)
    run.stop(loader)
    summary = run.summary(tmp_path)
    [found] = summary.loaders
    assert found.wait_total_s == pytest.approx(0.059, rel=0.01)
    assert found.wait_s is not None
    assert found.wait_s.max > 0.5  # the call itself took so long
    assert summary.ledger.seconds["gc"] == pytest.approx(0.5, rel=0.01)
    [epoch] = summary.epochs
    assert epoch.data_wait_s == pytest.approx(0.059, rel=0.01)
    shares = [one.evidence.get("wait_share", 0.0) for one in summary.findings]
    assert all(share < 0.25 for share in shares)
