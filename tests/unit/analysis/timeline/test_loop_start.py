"""Where loops begin that no loader feeds, or whose iterator was made long ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.events import MS, US, FakeRun, seconds

from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.steps import step_boundaries
from trainprof.analysis.timeline.timeline import loop_start
from trainprof.findings.summarize import context_of
from trainprof.record.schema import Kind


def sized(run: FakeRun) -> None:
    """A call for the size of what the model gives; data are read then."""
    run.forward(US)
    run.passes_time(40_000 * MS)


def cleared(run: FakeRun) -> None:
    run.leaf(Kind.ZERO_GRAD, US)
    run.passes_time(40_000 * MS)


def transformed(run: FakeRun) -> None:
    """A transform of all files, without a pause."""
    for _ in range(4_000):
        run.forward(10 * MS)


def accumulated(run: FakeRun, optimizer: int) -> None:
    for _ in range(8):
        run.forward()
        run.backward()
    run.update(optimizer)


def of_two_models(run: FakeRun, optimizer: int) -> None:
    run.forward()
    run.learn(optimizer)


def in_a_closure(run: FakeRun, optimizer: int) -> None:
    """As LBFGS does."""
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        for _ in range(4):
            run.leaf(Kind.ZERO_GRAD, US)
            run.forward()
            run.backward()


def by_hand(run: FakeRun, optimizer: int) -> None:
    run.forward()
    run.backward()


def by_rollouts(run: FakeRun, optimizer: int) -> None:
    """Calls without gradients of a policy that acts, and updates by what they gave."""
    for _ in range(200):
        run.forward(100 * US, flags=2)
        run.passes_time(100 * US)
    for _ in range(40):
        run.learn(optimizer)


STEPS: dict[str, Callable[[FakeRun, int], None]] = {
    "plain": lambda run, optimizer: run.learn(optimizer),
    "accumulated": accumulated,
    "two models": of_two_models,
    "a closure": in_a_closure,
    "without an optimizer": by_hand,
    "rollouts": by_rollouts,
}


def begins_at(run: FakeRun) -> int:
    events = run.events()
    nesting, none = nest(events), np.zeros(len(events), dtype=bool)
    ends = step_boundaries(
        events, nesting, ignore=none, batch_ends=np.empty(0, dtype=np.int64)
    ).ends
    return loop_start(events, nesting, ~none, ends)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_without_anything_ahead_it_begins_with_the_first_call(
    step: Callable[[FakeRun, int], None],
) -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    run.passes_time(40_000 * MS)
    began = run.now
    for _ in range(9):
        step(run, optimizer)
    assert begins_at(run) == began


@pytest.mark.parametrize("ahead", [sized, cleared, transformed])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_modules_are_called_for_long_before_is_no_part_of_it(
    step: Callable[[FakeRun, int], None], ahead: Callable[[FakeRun], None]
) -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    ahead(run)
    began = run.now
    for _ in range(9):
        step(run, optimizer)
    # A few steps of what comes right before are left with it.
    assert began - 3.5 * (run.now - began) / 9 <= begins_at(run) <= began


def test_a_call_shortly_before_is_left_with_it() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    began = run.now
    run.forward(US)
    run.passes_time(MS)
    for _ in range(9):
        run.learn(optimizer)
    assert begins_at(run) == began


@pytest.mark.parametrize("models", [1, 2])
def test_what_is_compiled_in_the_first_step_is_a_part_of_it(models: int) -> None:
    """However long it takes, in the calls and in the backward."""
    run = FakeRun()
    optimizer = run.optimizer()
    run.forward(US)
    run.passes_time(100_000 * MS)
    began = run.now
    for _ in range(models):
        run.forward(60_000 * MS)
    run.backward(60_000 * MS)
    run.update(optimizer)
    for _ in range(9):
        for _ in range(models):
            run.forward()
        run.backward()
        run.update(optimizer)
    assert begins_at(run) == began


def test_the_only_call_of_a_first_step_is_kept_however_long_its_loss_takes() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    began = run.now
    for step in range(9):
        run.forward()
        run.passes_time(MS if step else 1_000 * MS)
        run.backward()
        run.update(optimizer)
    assert begins_at(run) == began


def test_a_first_rollout_may_take_longer_than_others() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    began = run.now
    for episode in range(4):
        for _ in range(100):
            run.forward(100 * US, flags=2)
            run.passes_time(100 * US if episode else 180 * US)
        for _ in range(10):
            run.learn(optimizer)
    assert begins_at(run) == began


def test_where_steps_are_few_nothing_is_known_of_what_belongs_to_one() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    began = run.now
    sized(run)
    for _ in range(2):
        run.learn(optimizer)
    assert begins_at(run) == began


def test_what_lies_ahead_is_start_up_and_no_training(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    run.forward(500 * MS, flags=0)
    run.passes_time(40_000 * MS)
    for _ in range(9):
        run.passes_time(50 * US)
        run.learn(optimizer)
    summary = run.summary(tmp_path)
    # Of the first step what comes before its call is not known to belong to it.
    assert seconds(summary)["startup"] == 40_000 * MS + 50 * US
    assert seconds(summary)["other"] == 8 * 50 * US


def fed(tmp_path: Path, loaders: int, *, init: int, set_up: int, first: int = 100 * US) -> FakeRun:
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
def test_what_is_set_up_behind_an_iterator_is_no_part_of_it(tmp_path: Path, loaders: int) -> None:
    run = fed(tmp_path, loaders, init=20 * MS, set_up=4_000 * MS)
    found = run.summary(tmp_path)
    ahead_ns = 100 * MS + loaders * 20 * MS + 4_000 * MS
    assert found.phases.initialization_s * 1e9 == pytest.approx(ahead_ns)
    [epoch] = found.epochs
    assert epoch.seconds == pytest.approx(found.phases.training_s)
    assert epoch.start_s * 1e9 == pytest.approx(ahead_ns)
    assert epoch.loader_start_s == 0
    # The table has all of the run.
    assert found.loaders[0].init_s.mean == pytest.approx(0.02)
    part = run.summary(tmp_path, epoch=0)
    assert part.phases.training_s == pytest.approx(found.phases.training_s)
    assert part.training.steps == 20


def test_of_its_loader_all_counts_but_the_making_of_that_iterator(tmp_path: Path) -> None:
    run = fed(tmp_path, 1, init=20 * MS, set_up=4_000 * MS, first=300 * MS)
    case = context_of(run.write(tmp_path, host={"usable_cores": 4}))
    assert case is not None
    [one] = case.feeding
    assert (one.loader.passes, one.loader.iterations) == (1, 20)
    assert one.starts_s == pytest.approx(0.3)
    assert one.loader.first_start_s == pytest.approx(0.3)
    assert one.loader.wait_total_s == pytest.approx(19 * 100e-6)


@pytest.mark.parametrize(
    ("loaders", "init", "set_up", "first"),
    [
        pytest.param(1, 20 * MS, 1 * MS, 100 * US, id="no longer than a few steps"),
        pytest.param(1, 900 * MS, 500 * MS, 100 * US, id="no longer than to start its workers"),
        pytest.param(2, 900 * MS, 0, 3_000 * MS, id="another loader's start is none"),
    ],
)
def test_an_iterator_and_its_workers_belong_to_it_otherwise(
    tmp_path: Path, loaders: int, init: int, set_up: int, first: int
) -> None:
    found = fed(tmp_path, loaders, init=init, set_up=set_up, first=first).summary(tmp_path)
    assert found.phases.initialization_s == pytest.approx(0.1)
