"""On a device autograd calls hooks and checkpoints' forwards from threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.events import US, FakeRun, seconds

from trainprof.analysis.timeline.event_rewrites import on_calling_threads
from trainprof.record.schema import Kind


@contextmanager
def on_thread(run: FakeRun, thread: int) -> Iterator[None]:
    before, run.thread = run.thread, thread
    yield
    run.thread = before


def threads_of(run: FakeRun) -> list[tuple[str, int]]:
    events = on_calling_threads(run.events())
    pairs = zip(events.kind.tolist(), events.thread.tolist(), strict=True)
    return [(Kind(kind).name, thread) for kind, thread in pairs]


@pytest.mark.parametrize("thread", [0, 1])
def test_an_optimizer_in_backward_and_a_checkpoint(tmp_path: Path, thread: int) -> None:
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
    found = seconds(summary)
    assert (found["optimizer"], found["recompute"], found["backward"]) == (
        6 * 60 * US,
        6 * 40 * US,
        6 * 110 * US,
    )
    assert (found["forward"], found["first_batch"]) == (6 * 200 * US, 100 * US)
    assert sum(found.values()) == run.now - run.start


def test_a_thread_inside_one_that_is_inside() -> None:
    run = FakeRun()
    with on_thread(run, 3), run.span(Kind.BACKWARD):
        run.passes_time(5)
        with on_thread(run, 2), run.span(Kind.BACKWARD):
            run.passes_time(5)
            with on_thread(run, 1):
                run.forward(5)
            run.passes_time(5)
        run.passes_time(5)
    assert threads_of(run) == [("BACKWARD", 3), ("BACKWARD", 3), ("FORWARD", 3)]


def test_what_is_not_autograds_stays_where_it_is() -> None:
    run = FakeRun()
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
    assert threads_of(run) == [
        ("BACKWARD", 0),
        ("FORWARD", 1),
        ("GC", 2),
        ("OPTIMIZER_STEP", 3),
        ("FORWARD", 1),
        ("BACKWARD", 3),
    ]


def test_two_that_train_at_once_stay_two() -> None:
    run = FakeRun()
    for thread, start, end in ((0, 10, 30), (1, 20, 40), (0, 50, 60), (1, 51, 59)):
        with on_thread(run, thread):
            run.record(Kind.BACKWARD, start, end)
    assert [thread for _, thread in threads_of(run)] == [0, 1, 0, 1]
