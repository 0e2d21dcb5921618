"""Where steps end, and how many there are, in the loops that people write."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import LEARNS, US, FakeRun

from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.steps import step_boundaries
from trainprof.record.schema import Kind
from trainprof.record.step_count import StepCount


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


# Optimizers by letter in the order of their updates, and how many steps that is.
TURNS = {
    "one": ("A" * 30, 30),
    "in turn": ("AB" * 10, 10),
    "in turn, the other first": ("BA" * 10, 10),
    "one for each part of a model": ("ABCDEFGH" * 10, 10),
    "five critics": ("AAAAAB" * 6, 30),
    "two critics": ("AAB" * 10, 20),
    "two generators": ("ABB" * 10, 20),
    "two updates of a policy for two of its critics": ("AABCBC" * 10, 20),
    "blocks": (("A" * 20 + "B" * 20) * 3, 120),
    "unequal blocks": (("A" * 20 + "B" * 7) * 3, 81),
    "clients": ("AAAABBBBCCCCDDDDEEEE" * 4, 80),
    "unequal clients": ("AAAABBBBBBBBBCCC" * 4, 64),
    "one after the other": ("A" * 30 + "B" * 4 + "C" * 2, 36),
    "both in blocks, then in turn": ("A" * 100 + "B" * 100 + "AB" * 50, 250),
    "one in a block, then in turn": ("A" * 40 + "AB" * 50, 90),
    "one in a block, then two others in turn": ("A" * 40 + "BC" * 20, 60),
    "another one now and then": (("A" * 30 + "B") * 4, 120),
    "a few of another one": ("A" * 30 + "BBB" + "A" * 30, 63),
    "in turn by one pair, then by another": ("AB" * 20 + "CD" * 20, 40),
    "five updates for each task, then one for all": ("AAAAABBBBBCCCCCD" * 5, 75),
}


@pytest.mark.parametrize(("turns", "steps"), TURNS.values(), ids=TURNS)
def test_only_updates_in_turn_are_less_than_steps(turns, steps):
    run, count = FakeRun(), StepCount()
    optimizers = {letter: run.optimizer(f"Adam#{letter}") for letter in sorted(set(turns))}
    for letter in turns:
        run.learn(optimizers[letter])
        count.add(ord(letter))
    found = boundaries(run)
    assert len(found.ends) == steps
    assert (np.diff(found.ends) > 0).all()
    assert count.steps == steps, "limits go by another number than the report"


def test_the_ends_of_blocks_are_those_of_their_updates():
    run = FakeRun()
    loader, d, g = run.loader(), run.optimizer("Adam#1"), run.optimizer("Adam#2")
    ends = []
    run.iterate(loader)
    for optimizer in (d, g, d, g):
        for _ in range(5):
            run.next(loader)
            run.learn(optimizer)
            ends.append(run.now)
    assert boundaries(run).ends.tolist() == ends


def test_updates_in_evaluation_break_no_block():
    run = FakeRun()
    first, probe = run.optimizer("SGD#1"), run.optimizer("LBFGS#2")
    other = run.optimizer("SGD#3")
    spans = []
    for optimizer in (first, other, first, other):
        for _ in range(2):
            run.learn(optimizer)
        began = run.now
        run.learn(probe)
        spans.append((began, run.now))
        run.learn(optimizer)
    events = run.events()
    ignore = np.zeros(len(events), dtype=bool)
    for began, ended in spans:
        ignore |= (events.start >= began) & (events.start < ended)
    found = step_boundaries(events, nest(events), ignore=ignore, batch_ends=events.start[:0])
    assert len(found.ends) == 12


@pytest.mark.parametrize(("clients", "batches"), [(10, 4), (3, 20)])
def test_clients_that_keep_their_optimizers_have_a_step_for_each_batch(tmp_path, clients, batches):
    run = FakeRun()
    pairs = [(run.loader(), run.optimizer(f"SGD#{n}")) for n in range(clients)]
    for _ in range(4):
        for loader, optimizer in pairs:
            run.train_pass(loader, optimizer, batches)
    training = run.summary(tmp_path).training
    assert training.steps == training.iterations == 4 * clients * batches
    assert training.step_s is not None


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
