"""Which event lies inside which, against a naive oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.events import FakeRun

from trainprof.analysis.timeline.events import Events, nest
from trainprof.record.schema import RECORD, Kind


@st.composite
def trees(draw, depth=4):
    """A span: (gap before it, children, gap after the last of them)."""
    children = draw(st.lists(trees(depth - 1), max_size=3)) if depth else []
    return (draw(st.integers(0, 3)), children, draw(st.integers(0, 3)))


def planted(forest):
    """Records a forest; returns its events and, by value, (parent's value or -1, own ns)."""
    run, truth = FakeRun(), {}

    def enter(tree, parent):
        gap, children, rest = tree
        run.passes_time(gap)
        me = len(truth)
        truth[me] = None
        inside = 0
        with run.span(Kind.FORWARD, value=me):
            start = run.now
            for child in children:
                before = run.now
                enter(child, me)
                inside += run.now - before - child[0]
            run.passes_time(rest)
            truth[me] = (parent, run.now - start - inside)

    for tree in forest:
        enter(tree, -1)
    return run.events(), truth


@given(st.lists(trees(), min_size=1, max_size=4))
def test_planted_trees_come_back_as_they_were(forest):
    events, truth = planted(forest)
    nesting = nest(events)
    assert nesting.own_ns.sum() == (events.end - events.start)[nesting.top()].sum()
    for index, value in enumerate(events.value.tolist()):
        _, own = truth[value]
        assert nesting.own_ns[index] == own
    if (events.end > events.start).all() and len(set(events.start.tolist())) == len(events):
        for index, value in enumerate(events.value.tolist()):
            parent = nesting.parent[index]
            assert (events.value[parent] if parent >= 0 else -1) == truth[value][0]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=30))
def test_no_time_counts_twice_even_where_spans_overlap_as_they_cannot(spans):
    run = FakeRun()
    for start, length in spans:
        run.record(Kind.FORWARD, start, start + length)
    events = run.events()
    nesting = nest(events)
    top = nesting.top()
    assert (nesting.own_ns >= 0).all()
    assert nesting.own_ns.sum() == (events.end - events.start)[top].sum()
    assert (events.start[top][1:] >= events.end[top][:-1]).all()


def test_the_outer_of_two_that_begin_together_is_the_one_written_later():
    run = FakeRun()
    with run.span(Kind.LOADER_INIT):
        run.leaf(Kind.LOADER_RESET, 10)
    events = run.events()
    assert events.kind.tolist() == [Kind.LOADER_INIT, Kind.LOADER_RESET]
    assert nest(events).parent.tolist() == [-1, 0]


def test_holes_torn_records_and_unknown_kinds_are_left_out():
    run = FakeRun()
    run.leaf(Kind.FORWARD, 10)
    good = run.events()
    for kind in (0, 8, 9, 18, 19, 200, 255):
        run.record(kind, 5, 9)
    run.record(Kind.FORWARD, 0, 9)  # no start
    run.record(Kind.FORWARD, 9, 5)  # ends before it begins
    run.record(Kind.FORWARD, 1, 10**18)  # for years
    run.record(Kind.FORWARD, 1 << 63, (1 << 63) + 5)
    run.records.append(bytes(RECORD.size))
    for name in Events.__slots__:
        assert np.array_equal(getattr(run.events(), name), getattr(good, name))


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**40])
def test_large_values_survive(value):
    run = FakeRun()
    run.leaf(Kind.TRANSFER, 10, value=value)
    assert run.events().value.tolist() == [value]
