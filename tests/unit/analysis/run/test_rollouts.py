"""Forwards in evaluation mode that no loader feeds: a policy's rollouts, or evaluation."""

from __future__ import annotations

import pytest
from support.events import US, FakeRun, seconds

from trainprof.record.schema import Kind

CYCLES, MOVES, UPDATES = 4, 6, 10
FORWARD = 100 * US
SLOW, QUICK = 60 * US, 20 * US


def played(
    between: int,
    *,
    updates_first: int = 0,
    has_losses: bool = False,
    saves_within: bool = False,
    is_fed: bool = False,
    datasets: tuple[int, ...] = (),
    passes: int = 1,
) -> FakeRun:
    """In each cycle, moves with `between` ns after each, and then updates.

    With `datasets` those are fed, in each pass by a loader that is built for it: in each cycle of
    the dataset with that number.
    """
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(updates_first):
        run.learn(optimizer)
    for cycle in range(CYCLES):
        for move in range(MOVES):
            run.forward(FORWARD, flags=0)
            if has_losses:
                run.leaf(Kind.LOSS, 1 * US)
            if saves_within and move == 2:
                run.leaf(Kind.CHECKPOINT_SAVE, 1 * US)
            run.passes_time(between)
        if datasets:
            for _ in range(passes):
                run.mark(Kind.LOADER_BUILT, site=loader, value=datasets[cycle])
                run.passes_time(US)
                run.train_pass(loader, optimizer, UPDATES)
        elif is_fed:
            run.train_pass(loader, optimizer, UPDATES)
        else:
            for _ in range(UPDATES):
                run.learn(optimizer)
    return run


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"saves_within": True},
        {"datasets": (1, 2, 3, 4)},
        {"datasets": (1, 2, 3, 4), "passes": 3},
    ],
)
def test_what_a_policy_plays_is_no_evaluation(tmp_path, how):
    found = played(SLOW, **how).summary(tmp_path)
    assert "evaluation" not in seconds(found)
    # Of loaders' own data, those of the first cycle lie ahead of training.
    assert seconds(found)["other"] >= (CYCLES - 1) * MOVES * SLOW
    if not how:
        assert seconds(found)["forward"] == CYCLES * (MOVES * FORWARD + UPDATES * 200 * US)
        assert found.training.steps == CYCLES * UPDATES
        assert found.phases.initialization_s == 0


@pytest.mark.parametrize(
    "how",
    [
        {"updates_first": UPDATES},
        {"has_losses": True},
        {"is_fed": True},
        {"datasets": (1, 1, 1, 1)},  # a loader is built for each epoch
        {"datasets": (1, 2, 2, 2)},
        {"datasets": (0, 0, 0, 0)},  # an older recording
        {"datasets": (1, 2, 3, 4), "updates_first": UPDATES},
        {"between": QUICK},  # no environment is at work
        {"between": QUICK, "datasets": (1, 2, 3, 4)},
    ],
)
def test_evaluation_without_a_loader_is_no_rollout(tmp_path, how):
    between = how.get("between", SLOW)
    found = played(**{"between": SLOW, **how}).summary(tmp_path)
    assert seconds(found)["evaluation"] >= CYCLES * (MOVES * FORWARD + (MOVES - 1) * between)
    assert found.evaluation.passes == CYCLES


def test_features_that_are_computed_once_are_no_rollouts(tmp_path):
    run = FakeRun()
    optimizer = run.optimizer()
    for _ in range(MOVES):
        run.forward(FORWARD, flags=0)
        run.passes_time(SLOW)
    for _ in range(40):
        run.learn(optimizer)
    found = run.summary(tmp_path)
    assert seconds(found)["evaluation"] == MOVES * FORWARD + (MOVES - 1) * SLOW
