"""How much of some stretches of time lies where, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.events import MS, FakeRun

from trainprof.analysis.timeline.intervals import Coverage
from trainprof.record.schema import Kind

WINDOW = (10, 90)
spans = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)


@given(spans, st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=5))
def test_it_counts_each_moment_once(given_spans, asked):
    covered = Coverage.of(np.array(given_spans, dtype=np.int64).reshape(-1, 2), WINDOW)
    truth = {at for start, end in given_spans for at in range(max(start, 10), min(end, 90))}
    assert covered.total_ns() == len(truth)
    starts = np.array([start for start, _ in asked], dtype=np.int64)
    ends = starts + np.array([length for _, length in asked], dtype=np.int64)
    assert covered.inside_ns(starts, ends).tolist() == [
        len(truth & set(range(start, end)))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert (covered.starts[1:] > covered.ends[:-1]).all()


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
    [loader_row] = summary.loaders
    assert loader_row.wait_total_s == pytest.approx(0.059, rel=0.01)
    assert loader_row.wait_s.max > 0.5  # the call itself took so long
    assert summary.ledger.seconds["gc"] == pytest.approx(0.5, rel=0.01)
    [epoch] = summary.epochs
    assert epoch.data_wait_s == pytest.approx(0.059, rel=0.01)
