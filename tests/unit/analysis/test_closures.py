"""The calls of closures, found among the events of several threads."""

from __future__ import annotations

import numpy as np
from support.events import LEARNS, FakeRun

from trainprof.analysis.closures import with_closures
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
    assert with_closures(events) is events


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
    found = with_closures(run.events())
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
