"""Forwards that no loader feeds: validation on tensors, rollouts of a policy, or training's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.events import US, FakeRun, seconds

from trainprof.record.schema import ForwardFlag, Kind

STEPS = 24
FORWARD, LOSS = 70 * US, 10 * US
CYCLES, MOVES, UPDATES = 4, 6, 10
ROLLOUT = 100 * US
SLOW, QUICK = 60 * US, 20 * US


def validates(run: FakeRun, mode: int, *, loss: bool = True, of: int = 0) -> None:
    run.forward(FORWARD, flags=mode, site=of)
    if loss:
        run.leaf(Kind.LOSS, LOSS, flags=0)


def trained(tmp_path: Path, step: Callable[[FakeRun, int, int], None]) -> dict[str, int]:
    """Returns what parts of a run took, ns, by what each step does once it has its batch."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for number in range(STEPS):
        run.next(loader)
        step(run, optimizer, number)
    run.stop(loader)
    return seconds(run.summary(tmp_path))


@pytest.mark.parametrize("mode", [0, ForwardFlag.TRAINING])
@pytest.mark.parametrize("every", [1, 4, 8, STEPS])
def test_validation_on_tensors_that_the_script_holds(tmp_path: Path, mode: int, every: int) -> None:
    def step(run: FakeRun, optimizer: int, number: int) -> None:
        run.learn(optimizer)
        if number % every == every - 1:
            validates(run, mode)

    parts = trained(tmp_path, step)
    # In training mode in each step it is a metric of the batch.
    times = 0 if every == 1 and mode else STEPS // every
    assert parts.get("evaluation", 0) == times * (FORWARD + LOSS)
    if times:
        assert parts["forward"] == STEPS * 200 * US


def samples_or_rollouts(run: FakeRun, optimizer: int, number: int) -> None:
    run.learn(optimizer)
    if number % 4 == 3:
        validates(run, ForwardFlag.TRAINING, loss=False)


def acts_in_each_step(run: FakeRun, optimizer: int, number: int) -> None:
    run.learn(optimizer)
    validates(run, 0, loss=False)


def teacher(run: FakeRun, optimizer: int, number: int) -> None:
    validates(run, 0)
    run.learn(optimizer)


def fake_for_the_judge(run: FakeRun, optimizer: int, number: int) -> None:
    """The generator's update comes first."""
    run.learn(optimizer)
    validates(run, ForwardFlag.TRAINING)
    run.learn(optimizer)


def part_by_part(run: FakeRun, optimizer: int, number: int) -> None:
    """What is frozen encodes each part of a batch."""
    for _ in range(4):
        validates(run, 0)
        run.learn(optimizer)


@pytest.mark.parametrize(
    "step",
    [
        samples_or_rollouts,
        acts_in_each_step,
        teacher,
        fake_for_the_judge,
        part_by_part,
    ],
)
def test_what_training_may_need_is_no_evaluation(
    tmp_path: Path, step: Callable[[FakeRun, int, int], None]
) -> None:
    assert "evaluation" not in trained(tmp_path, step)


def played(
    between: int,
    *,
    updates_first: int = 0,
    has_losses: bool = False,
    datasets: tuple[int, ...] = (),
) -> FakeRun:
    """In each cycle moves, and updates; with `datasets` by a loader built for that number."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(updates_first):
        run.learn(optimizer)
    for cycle in range(CYCLES):
        for _ in range(MOVES):
            run.forward(ROLLOUT, flags=0)
            if has_losses:
                run.leaf(Kind.LOSS, 1 * US)
            run.passes_time(between)
        if datasets:
            run.mark(Kind.LOADER_BUILT, site=loader, value=datasets[cycle])
            run.passes_time(US)
            run.train_pass(loader, optimizer, UPDATES)
        else:
            for _ in range(UPDATES):
                run.learn(optimizer)
    return run


@pytest.mark.parametrize("how", [{}, {"datasets": (1, 2, 3, 4)}])
def test_what_a_policy_plays_is_no_evaluation(tmp_path: Path, how: dict[str, Any]) -> None:
    summary = played(SLOW, **how).summary(tmp_path)
    assert "evaluation" not in seconds(summary)
    # Of loaders' own data, those of the first cycle lie ahead of training.
    assert seconds(summary)["other"] >= (CYCLES - 1) * MOVES * SLOW
    if not how:
        assert seconds(summary)["forward"] == CYCLES * (MOVES * ROLLOUT + UPDATES * 200 * US)
        assert summary.training.steps == CYCLES * UPDATES
        assert summary.phases.initialization_s == 0


@pytest.mark.parametrize(
    "how",
    [
        {"updates_first": UPDATES},
        {"has_losses": True},
        {"datasets": (1, 1, 1, 1)},  # a loader is built for each epoch
        {"datasets": (0, 0, 0, 0)},  # an older recording
        {"datasets": (1, 2, 3, 4), "updates_first": UPDATES},
        {"between": QUICK},  # no environment is at work
    ],
)
def test_evaluation_without_a_loader_is_no_rollout(tmp_path: Path, how: dict[str, Any]) -> None:
    between = how.get("between", SLOW)
    summary = played(**{"between": SLOW, **how}).summary(tmp_path)
    assert seconds(summary)["evaluation"] >= CYCLES * (MOVES * ROLLOUT + (MOVES - 1) * between)
    assert summary.evaluation.passes == CYCLES
