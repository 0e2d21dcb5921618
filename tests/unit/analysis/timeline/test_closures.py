"""The calls of closures, found among the events of several threads."""

from __future__ import annotations

import numpy as np
from support.events import LEARNS, FakeRun

from trainprof.analysis.timeline.event_rewrites import with_closures
from trainprof.record.schema import Kind


def computes(run: FakeRun) -> None:
    run.leaf(Kind.ZERO_GRAD, 1)
    run.leaf(Kind.FORWARD, 20, flags=LEARNS)
    run.leaf(Kind.BACKWARD, 30)


def test_a_loop_without_closures_is_left_as_it_is():
    run = FakeRun()
    for _ in range(3):
        computes(run)
        run.leaf(Kind.OPTIMIZER_STEP, 10, site=run.optimizer())
    events = run.events()
    assert with_closures(events, run.log().details) is events


def test_a_closure_goes_on_until_the_update_begins():
    """Of the last call in a step; LBFGS, which tells nothing, may call it again."""
    run = FakeRun()
    optimizer = run.optimizer()

    def begins() -> None:
        run.record(Kind.UPDATE_BEGINS, run.now, run.now)

    begun = run.now
    begins()  # of a step that went by
    for is_told in (True, False, True):
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            computes(run)
            run.passes_time(5)
            computes(run)
            run.passes_time(20)
            if is_told:
                begins()
            run.passes_time(8)
    found = with_closures(run.events(), run.log().details)
    closures = found.where(found.is_kind(Kind.CLOSURE))
    spans = zip((closures.start - begun).tolist(), (closures.end - begun).tolist(), strict=True)
    step = 51 + 5 + 51 + 20 + 8
    assert list(spans) == [
        (at + n * step, end + n * step)
        for n, last in ((0, 127), (1, 107), (2, 127))
        for at, end in ((0, 51), (56, last))
    ]


def test_each_thread_has_its_own_closures_in_order_of_start():
    run = FakeRun()
    optimizer = run.optimizer()
    run.passes_time(100)
    begun = run.now
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        run.passes_time(5)
        run.leaf(Kind.FORWARD, 40, flags=LEARNS)
        run.leaf(Kind.BACKWARD, 40)
        run.passes_time(10)
    run.now, run.thread = begun + 3, 1
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        run.passes_time(7)
        computes(run)
        computes(run)
        run.passes_time(9)
    found = with_closures(run.events(), run.log().details)
    assert (np.diff(found.start) >= 0).all()
    closures = found.where(found.is_kind(Kind.CLOSURE))
    spans = zip(
        closures.thread.tolist(),
        (closures.start - begun).tolist(),
        (closures.end - begun).tolist(),
        strict=True,
    )
    assert list(spans) == [(0, 0, 85), (1, 10, 61), (1, 61, 112)]
    assert len(found) == len(run.events()) + 3
