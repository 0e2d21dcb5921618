"""How much of some stretches of time lies where, against counting them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.events import FakeRun

from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.intervals import Coverage, own_inside_ns
from trainprof.record.schema import Kind

WINDOW = (10, 90)
spans = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)


def coverage(given_spans: list[tuple[int, int]]) -> Coverage:
    return Coverage.of(np.array(given_spans, dtype=np.int64).reshape(-1, 2), WINDOW)


def ticks(given_spans: list[tuple[int, int]]) -> set[int]:
    return {at for start, end in given_spans for at in range(max(start, 10), min(end, 90))}


@given(spans, st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=5))
def test_it_counts_each_moment_once(given_spans, asked) -> None:  # type: ignore[no-untyped-def]
    found, truth = coverage(given_spans), ticks(given_spans)
    assert found.total_ns() == len(truth)
    starts = np.array([start for start, _ in asked], dtype=np.int64)
    ends = starts + np.array([length for _, length in asked], dtype=np.int64)
    assert found.inside_ns(starts, ends).tolist() == [
        len(truth & set(range(start, end)))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert (found.starts[1:] > found.ends[:-1]).all()


def test_a_childs_time_is_not_its_parents() -> None:
    run = FakeRun()
    start = run.now
    with run.span(Kind.FORWARD):
        run.passes_time(10)
        run.leaf(Kind.TRANSFER, 20)
        run.passes_time(10)
    events = run.events()
    covered = Coverage.of(np.array([[start + 5, start + 15]]), (start, run.now))
    assert own_inside_ns(covered, events, nest(events)).tolist() == [5, 5]
