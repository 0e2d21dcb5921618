"""Where steps end, and how many there are, in the loops that people write."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import LEARNS, US, FakeRun

from trainprof.analysis.events import nest
from trainprof.analysis.steps import step_boundaries
from trainprof.record.schema import Kind


def boundaries(run, batches=()):
    events = run.events()
    nothing = np.zeros(len(events), dtype=bool)
    ends = np.array(batches, dtype=np.int64)
    return step_boundaries(events, nest(events), ignore=nothing, batch_ends=ends)


def test_a_step_is_from_update_to_update(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    ends = []
    run.iterate(loader)
    for _ in range(5):
        run.next(loader)
        run.learn(optimizer)
        ends.append(run.now)
        run.passes_time(10)  # belongs to the next step
    found = boundaries(run)
    assert found.ends.tolist() == ends
    assert found.source == "optimizer"


def test_an_event_that_begins_where_a_step_ends_belongs_to_the_next(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.train_pass(loader, optimizer, 40)  # no time passes between update and next
    found = run.summary(tmp_path).training
    assert found.per_step_s["data_wait"] == pytest.approx(100e-6)
    assert sum(found.per_step_s.values()) == pytest.approx(found.step_s.mean)
    assert found.per_step_s["forward"] == pytest.approx(200e-6)


def test_accumulation(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for batch in range(12):
        run.next(loader)
        run.forward()
        run.backward()
        if batch % 4 == 3:
            run.update(optimizer)
    training = run.summary(tmp_path).training
    assert (training.steps, training.iterations, training.epochs) == (3, 12, 1)


def test_accumulation_without_a_loader_counts_backwards(tmp_path):
    run = FakeRun()
    optimizer = run.optimizer()
    for batch in range(12):
        run.forward()
        run.backward()
        if batch % 4 == 3:
            run.update(optimizer)
    training = run.summary(tmp_path).training
    assert (training.steps, training.iterations, training.epochs) == (3, 12, 0)


@pytest.mark.parametrize("first", ["discriminator", "generator"])
def test_two_optimizers_in_turn_end_a_step_with_the_second(first):
    run = FakeRun()
    d, g = run.optimizer("Adam#1"), run.optimizer("Adam#2")
    ends = []
    for _ in range(5):
        for optimizer in (d, g) if first == "discriminator" else (g, d):
            run.learn(optimizer)
        ends.append(run.now)
    assert boundaries(run).ends.tolist() == ends


def test_a_discriminator_trained_five_times_as_often_sets_the_pace():
    run = FakeRun()
    d, g = run.optimizer("Adam#1"), run.optimizer("Adam#2")
    for _ in range(4):
        for _ in range(5):
            run.learn(d)
        run.learn(g)
    assert len(boundaries(run).ends) == 20


def test_a_step_that_the_scaler_skips_is_a_step():
    run = FakeRun()
    optimizer = run.optimizer()
    for step in range(6):
        run.forward()
        run.backward()
        with run.span(Kind.SCALER_STEP, site=optimizer):
            run.passes_time(3)
            if step != 2:
                run.update(optimizer)
        run.leaf(Kind.SCALER_UPDATE, 4)
    assert len(boundaries(run).ends) == 6


def test_super_step_fires_twice_and_counts_once():
    run = FakeRun()
    optimizer = run.optimizer()
    for _ in range(3):
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(1)
            run.update(optimizer)
            run.passes_time(1)
    assert len(boundaries(run).ends) == 3


def test_updates_inside_the_backward_end_with_it():
    run = FakeRun()
    optimizers = [run.optimizer(f"SGD#{n}") for n in range(3)]
    ends = []
    for _ in range(4):
        run.forward()
        with run.span(Kind.BACKWARD):
            for optimizer in optimizers:
                run.passes_time(10)
                run.update(optimizer)
        ends.append(run.now)
    assert boundaries(run).ends.tolist() == ends


def test_successive_optimizers_both_count():
    run = FakeRun()
    first, second = run.optimizer("SGD#1"), run.optimizer("Adam#2")
    for optimizer, steps in ((first, 30), (second, 4)):
        for _ in range(steps):
            run.learn(optimizer)
    assert len(boundaries(run).ends) == 34


def test_without_updates_backwards_end_steps():
    run = FakeRun()
    for _ in range(4):
        run.forward()
        run.backward()
    found = boundaries(run)
    assert (len(found.ends), found.source) == (4, "backward")


def test_a_backward_that_follows_no_forward_is_no_step():
    run = FakeRun()
    run.backward()  # torch.compile traces one
    for _ in range(4):
        run.forward()
        run.backward()
    run.backward()  # a second derivative
    assert len(boundaries(run).ends) == 4


def test_backwards_count_where_no_forward_is_seen():
    run = FakeRun()
    for _ in range(4):
        run.backward()
    assert len(boundaries(run).ends) == 4


def test_recomputation_inside_a_backward_is_no_step():
    run = FakeRun()
    for _ in range(3):
        run.forward()
        with run.span(Kind.BACKWARD):
            run.forward()
            run.backward()
    assert len(boundaries(run).ends) == 3


def test_without_backwards_batches_end_steps():
    run = FakeRun()
    found = boundaries(run, batches=[30, 10, 20])
    assert (found.ends.tolist(), found.source) == ([10, 20, 30], "batches")


def test_nothing_at_all_has_no_steps():
    found = boundaries(FakeRun())
    assert (len(found.ends), found.source) == (0, "none")


def test_a_loop_seen_only_as_batches_and_forwards_has_a_step_per_batch(tmp_path):
    run = FakeRun()
    loader = run.loader()
    run.iterate(loader)
    for _ in range(7):
        run.next(loader)
        run.forward(flags=LEARNS)
        run.passes_time(100 * US)
    training = run.summary(tmp_path).training
    assert (training.steps, training.step_source) == (7, "batches")


def test_updates_in_evaluation_do_not_count():
    run = FakeRun()
    optimizer = run.optimizer()
    for _ in range(3):
        run.learn(optimizer)
    events = run.events()
    ignore = events.start >= events.end[events.is_kind(Kind.OPTIMIZER_STEP)][1]
    found = step_boundaries(events, nest(events), ignore=ignore, batch_ends=events.start[:0])
    assert len(found.ends) == 2
