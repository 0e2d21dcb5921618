"""Where loops begin that no loader feeds, or whose iterator was made long ahead."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import MS, US, FakeRun, seconds
from support.loops import Loop

from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.timeline import loop_start, step_boundaries
from trainprof.findings.summarize import context_of
from trainprof.record.schema import Kind

LONG = 40_000 * MS


def closure(played):
    """As LBFGS has it."""
    with played.run.span(Kind.OPTIMIZER_STEP, site=played.optimizer(1)):
        played.play("4( z f b )")


STEPS = {
    "plain": "l",
    "accumulated": "8( f b ) u",
    "of two models": "f l",
    "a closure": closure,
    "without an optimizer": "f b",
    "rollouts": "200( ft + ) 40( l )",  # calls of a policy, and updates by what they gave
}


def play(played, step, times=9):
    for _ in range(times):
        if callable(step):
            step(played)
        else:
            played.play(step)


def begins_at(run):
    events = run.events()
    nesting, nothing = nest(events), np.zeros(len(events), dtype=bool)
    ends = step_boundaries(events, nesting, ignore=nothing, batch_ends=events.start[:0]).ends
    return loop_start(events, nesting, ~nothing, ends)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_without_anything_ahead_it_begins_with_the_first_call(step):
    played = Loop()
    played.run.passes_time(LONG)
    began = played.run.now
    play(played, step)
    assert begins_at(played.run) == began


@pytest.mark.parametrize("ahead", ["f 20( ~ )", "z 20( ~ )", "transformed"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_modules_are_called_for_long_before_is_no_part_of_it(step, ahead):
    """For the size of what a model gives, say, and to transform all files."""
    played = Loop()
    run = played.run
    if ahead == "transformed":
        for _ in range(4_000):
            run.forward(10 * MS)
    else:
        played.play(ahead)
    began = run.now
    play(played, step)
    # A few steps of what comes right before are left with it.
    assert began - 3.5 * (run.now - began) / 9 <= begins_at(run) <= began


def compiled(run):
    """However long it takes, in the calls of two models and in the backward."""
    run.forward(US)
    run.passes_time(100_000 * MS)
    began = run.now
    for step in range(10):
        for _ in range(2):
            run.forward(200 * US if step else 60_000 * MS)
        run.backward(300 * US if step else 60_000 * MS)
        run.update(run.optimizer())
    return began


def slow_first_loss(run):
    for step in range(9):
        run.forward()
        run.passes_time(MS if step else 1_000 * MS)
        run.backward()
        run.update(run.optimizer())
    return run.start


def long_first_rollout(run):
    for episode in range(4):
        for _ in range(100):
            run.forward(100 * US, flags=2)
            run.passes_time(100 * US if episode else 180 * US)
        for _ in range(10):
            run.learn(run.optimizer())
    return run.start


def call_shortly_before(run):
    run.forward(US)
    run.passes_time(MS)
    for _ in range(9):
        run.learn(run.optimizer())
    return run.start


def too_few_steps(run):
    run.forward(US)
    run.passes_time(LONG)
    for _ in range(2):
        run.learn(run.optimizer())
    return run.start


@pytest.mark.parametrize(
    "plant",
    [
        compiled,
        slow_first_loss,
        long_first_rollout,
        call_shortly_before,
        too_few_steps,
    ],
)
def test_what_belongs_to_the_first_step(plant):
    run = FakeRun()
    began = plant(run)
    assert begins_at(run) == began


def test_what_lies_ahead_is_start_up_and_no_training(tmp_path):
    run = FakeRun()
    optimizer = run.optimizer()
    run.forward(500 * MS, flags=0)
    run.passes_time(LONG)
    for _ in range(9):
        run.passes_time(50 * US)
        run.learn(optimizer)
    summary = run.summary(tmp_path)
    # Of the first step what comes before its call is not known to belong to it.
    assert seconds(summary)["startup"] == LONG + 50 * US
    assert seconds(summary)["other"] == 8 * 50 * US


def looped(loaders, *, init, set_up, first=100 * US):
    """Iterators of some loaders are made, something is set up, and steps take a batch of each."""
    run = FakeRun()
    used, optimizer = [run.loader(line) for line in range(loaders)], run.optimizer()
    run.passes_time(100 * MS)
    for loader in used:
        run.iterate(loader, init)
    run.passes_time(set_up)
    for step in range(20):
        for loader in used:
            run.next(loader, 100 * US if step else first)
        run.learn(optimizer)
    return run


@pytest.mark.parametrize("loaders", [1, 2])
def test_what_is_set_up_behind_an_iterator_is_no_part_of_it(tmp_path, loaders):
    run = looped(loaders, init=20 * MS, set_up=4_000 * MS)
    summary = run.summary(tmp_path)
    ahead_ns = 100 * MS + loaders * 20 * MS + 4_000 * MS
    assert summary.phases.initialization_s * 1e9 == pytest.approx(ahead_ns)
    [epoch] = summary.epochs
    assert epoch.seconds == pytest.approx(summary.phases.training_s)
    assert epoch.start_s * 1e9 == pytest.approx(ahead_ns)
    assert epoch.loader_start_s == 0
    # The table has all of the run.
    assert summary.loaders[0].init_s.mean == pytest.approx(0.02)
    part = run.summary(tmp_path, epoch=0)
    assert part.phases.training_s == pytest.approx(summary.phases.training_s)
    assert part.training.steps == 20


def test_of_its_loader_all_counts_but_the_making_of_that_iterator(tmp_path):
    run = looped(1, init=20 * MS, set_up=4_000 * MS, first=300 * MS)
    [feeding] = context_of(run.write(tmp_path, host={"usable_cores": 4})).feeding
    assert (feeding.loader.passes, feeding.loader.iterations) == (1, 20)
    assert feeding.starts_s == pytest.approx(0.3)
    assert feeding.loader.first_start_s == pytest.approx(0.3)
    assert feeding.loader.wait_total_s == pytest.approx(19 * 100e-6)


@pytest.mark.parametrize(
    ("loaders", "init", "set_up", "first"),
    [
        pytest.param(1, 20 * MS, 1 * MS, 100 * US, id="no longer than a few steps"),
        pytest.param(1, 900 * MS, 500 * MS, 100 * US, id="no longer than to start its workers"),
        pytest.param(2, 900 * MS, 0, 3_000 * MS, id="another loader's start is none"),
    ],
)
def test_an_iterator_and_its_workers_belong_to_it_otherwise(tmp_path, loaders, init, set_up, first):
    summary = looped(loaders, init=init, set_up=set_up, first=first).summary(tmp_path)
    assert summary.phases.initialization_s == pytest.approx(0.1)
