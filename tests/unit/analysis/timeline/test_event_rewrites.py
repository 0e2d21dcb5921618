"""Events of autograd's threads under their callers, and calls of closures among the others."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from support.events import LEARNS, US, FakeRun, seconds

from trainprof.analysis.timeline.event_rewrites import on_calling_threads, with_closures
from trainprof.record.schema import Kind


@contextmanager
def on_thread(run, thread):
    before, run.thread = run.thread, thread
    yield
    run.thread = before


@pytest.mark.parametrize("thread", [0, 1])
def test_an_optimizer_in_backward_and_a_checkpoint(tmp_path, thread):
    run = FakeRun()
    loader = run.loader()
    optimizers = [run.optimizer(f"SGD#{number}") for number in (1, 2)]
    run.iterate(loader)
    for _ in range(6):
        run.next(loader)
        run.forward()
        with run.span(Kind.BACKWARD):
            run.passes_time(100 * US)
            with on_thread(run, thread):
                run.forward(40 * US)
                for optimizer in optimizers:
                    run.update(optimizer, 30 * US)
                    run.passes_time(5 * US)
        run.passes_time(7 * US)
    run.stop(loader)
    summary = run.summary(tmp_path)
    assert summary.training.steps == 6
    ledger = seconds(summary)
    per_step = {"optimizer": 60, "recompute": 40, "backward": 110, "forward": 200}
    assert {key: ledger[key] for key in per_step} == {k: 6 * us * US for k, us in per_step.items()}
    assert sum(ledger.values()) == run.now - run.start


def inside_one_that_is_inside(run):
    with on_thread(run, 3), run.span(Kind.BACKWARD):
        run.passes_time(5)
        with on_thread(run, 2), run.span(Kind.BACKWARD):
            run.passes_time(5)
            with on_thread(run, 1):
                run.forward(5)
            run.passes_time(5)
        run.passes_time(5)


def not_autograds(run):
    optimizer = run.optimizer()
    with run.span(Kind.BACKWARD):
        run.passes_time(5)
        with on_thread(run, 1):
            run.forward(5)  # of a thread that evaluates, say
        with on_thread(run, 2):
            run.leaf(Kind.GC, 5)
        with on_thread(run, 3):
            run.update(optimizer, 5)
    with on_thread(run, 1):
        run.forward(5)
    with on_thread(run, 3), run.span(Kind.BACKWARD):
        run.passes_time(5)


def two_that_train_at_once(run):
    for thread, start, end in ((0, 10, 30), (1, 20, 40), (0, 50, 60), (1, 51, 59)):
        with on_thread(run, thread):
            run.record(Kind.BACKWARD, start, end)


@pytest.mark.parametrize(
    ("plant", "threads"),
    [
        (inside_one_that_is_inside, [3, 3, 3]),
        (not_autograds, [0, 1, 2, 3, 1, 3]),
        (two_that_train_at_once, [0, 1, 0, 1]),
    ],
)
def test_whose_thread_events_are_of(plant, threads):
    run = FakeRun()
    plant(run)
    assert on_calling_threads(run.events()).thread.tolist() == threads


def computes(run):
    run.leaf(Kind.ZERO_GRAD, 1)
    run.leaf(Kind.FORWARD, 20, flags=LEARNS)
    run.leaf(Kind.BACKWARD, 30)


def closures_of(run, begun):
    """Returns thread, start and end of each, and the events with them."""
    events = with_closures(run.events(), run.log().details)
    closures = events.where(events.is_kind(Kind.CLOSURE))
    columns = (closures.thread, closures.start - begun, closures.end - begun)
    return list(zip(*(column.tolist() for column in columns), strict=True)), events


def test_a_loop_without_closures_is_left_as_it_is():
    run = FakeRun()
    for _ in range(3):
        computes(run)
        run.leaf(Kind.OPTIMIZER_STEP, 10, site=run.optimizer())
    events = run.events()
    assert with_closures(events, run.log().details) is events


def test_a_closure_goes_on_until_the_update_begins():
    """Of the last call in a step; LBFGS, which records nothing, may call it again."""
    run = FakeRun()
    optimizer = run.optimizer()
    begun = run.now
    run.mark(Kind.UPDATE_BEGINS)  # of a step that went by
    for is_recorded in (True, False, True):
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            computes(run)
            run.passes_time(5)
            computes(run)
            run.passes_time(20)
            if is_recorded:
                run.mark(Kind.UPDATE_BEGINS)
            run.passes_time(8)
    step = 51 + 5 + 51 + 20 + 8
    assert closures_of(run, begun)[0] == [
        (0, at + n * step, end + n * step)
        for n, last in ((0, 127), (1, 107), (2, 127))
        for at, end in ((0, 51), (56, last))
    ]
