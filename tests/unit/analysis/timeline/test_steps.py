"""Where steps end, and how many there are, in the loops that people write."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import FakeRun
from support.loops import Loop, unrolled

from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.timeline import step_boundaries
from trainprof.record.step_count import StepCount


def boundaries(run, batches=()):
    events = run.events()
    nothing = np.zeros(len(events), dtype=bool)
    ends = np.array(batches, dtype=np.int64)
    return step_boundaries(events, nest(events), ignore=nothing, batch_ends=ends)


@pytest.mark.parametrize(
    ("loop", "source"),
    [
        ("i1 5( n1 l | + )", "optimizer"),  # what follows belongs to the next step
        ("i1 2( 5( n1 l | ) 5( n1 l2 | ) )", "optimizer"),  # each of a block
        ("5( l l2 | )", "optimizer"),  # a discriminator and a generator, in turn
        ("5( l2 l | )", "optimizer"),
        ("4( 5( l | ) l2 )", "optimizer"),  # one trained five times as often sets the pace
        ("30( l | ) 4( l2 | )", "optimizer"),  # one after the other
        ("4( f b | )", "backward"),
        ("b 4( f b | ) b", "backward"),  # torch.compile traces one; a second derivative
        ("4( b | )", "backward"),
        ("", "none"),
    ],
)
def test_where_steps_end(loop, source):
    played, ends = Loop(), []
    for token in unrolled(loop.split()):
        if token == "|":
            ends.append(played.run.now)
        else:
            played.play(token)
    steps = boundaries(played.run)
    assert (steps.ends.tolist(), steps.source) == (ends, source)


def test_an_event_that_begins_where_a_step_ends_belongs_to_the_next(tmp_path):
    training = Loop().play("i1 40( n1 l ) s1").run.summary(tmp_path).training
    assert training.per_step_s["data_wait"] == pytest.approx(100e-6)
    assert sum(training.per_step_s.values()) == pytest.approx(training.step_s.mean)
    assert training.per_step_s["forward"] == pytest.approx(200e-6)


@pytest.mark.parametrize(
    ("loop", "expected", "source"),
    [
        ("i1 3( 4( n1 f b ) u )", (3, 12, 1), "optimizer"),
        ("3( 4( f b ) u )", (3, 12, 0), "optimizer"),  # without a loader backwards are counted
        ("i1 7( n1 f + )", (7, 7, 1), "batches"),
    ],
)
def test_steps_iterations_and_epochs(tmp_path, loop, expected, source):
    training = Loop().play(loop).run.summary(tmp_path).training
    assert (training.steps, training.iterations, training.epochs) == expected
    assert training.step_source == source


# Optimizers by letter in the order of their updates, and how many steps that is.
TURNS = {
    "one": ("A" * 30, 30),
    "in turn": ("AB" * 10, 10),
    "one for each part of a model": ("ABCDEFGH" * 10, 10),
    "five critics": ("AAAAAB" * 6, 30),
    "two generators": ("ABB" * 10, 20),
    "two updates of a policy for two of its critics": ("AABCBC" * 10, 20),
    "blocks": (("A" * 20 + "B" * 20) * 3, 120),
    "clients": ("AAAABBBBCCCCDDDDEEEE" * 4, 80),
    "one after the other": ("A" * 30 + "B" * 4 + "C" * 2, 36),
    "both in blocks, then in turn": ("A" * 100 + "B" * 100 + "AB" * 50, 250),
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
    ends = boundaries(run).ends
    assert len(ends) == steps
    assert (np.diff(ends) > 0).all()
    assert count.steps == steps, "limits go by another number than the report"


def test_without_backwards_batches_end_steps():
    steps = boundaries(FakeRun(), batches=[30, 10, 20])
    assert (steps.ends.tolist(), steps.source) == ([10, 20, 30], "batches")
