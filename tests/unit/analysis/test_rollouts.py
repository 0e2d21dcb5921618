"""Forwards in evaluation mode that no loader feeds: a policy's rollouts, or evaluation."""

from __future__ import annotations

import pytest
from support.events import MS, US, FakeRun, seconds

from trainprof.record.schema import Kind

CYCLES, MOVES, UPDATES = 4, 6, 10
FORWARD = 100 * US
SLOW, QUICK = 60 * US, 20 * US


def played(
    between: int,
    *,
    forward: int = FORWARD,
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
            run.forward(forward, flags=0)
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


@pytest.mark.parametrize("saves_within", [False, True])
def test_an_environment_between_forwards_is_the_loops_own_code(tmp_path, saves_within):
    found = played(SLOW, saves_within=saves_within).summary(tmp_path)
    told = seconds(found)
    assert "evaluation" not in told
    assert told["other"] == CYCLES * MOVES * SLOW
    assert told["forward"] == CYCLES * (MOVES * FORWARD + UPDATES * 200 * US)
    assert (found.evaluation.passes, found.evaluation.may_be_rollouts_s) == (0, 0.0)
    assert found.training.steps == CYCLES * UPDATES
    assert found.phases.initialization_s == 0


def test_where_hardly_anything_is_between_them_it_may_be_either(tmp_path):
    found = played(QUICK).summary(tmp_path)
    took = CYCLES * (MOVES * FORWARD + (MOVES - 1) * QUICK)
    assert seconds(found)["evaluation"] == took
    assert found.evaluation.may_be_rollouts_s == pytest.approx(took / 1e9)


@pytest.mark.parametrize("between", [SLOW, QUICK])
@pytest.mark.parametrize(
    "what",
    [{"updates_first": UPDATES}, {"has_losses": True}, {"is_fed": True}],
    ids=["after updates", "losses", "a loader feeds training"],
)
def test_evaluation_without_a_loader_is_told_from_rollouts(tmp_path, what, between):
    found = played(between, **what).summary(tmp_path)
    assert seconds(found)["evaluation"] >= CYCLES * (MOVES * FORWARD + (MOVES - 1) * between)
    assert found.evaluation.passes == CYCLES
    assert found.evaluation.may_be_rollouts_s == 0


@pytest.mark.parametrize("passes", [1, 3])
def test_what_a_policy_collected_may_come_through_loaders_of_its_own(tmp_path, passes):
    slow = played(SLOW, datasets=(1, 2, 3, 4), passes=passes).summary(tmp_path / "slow")
    assert "evaluation" not in seconds(slow)
    # Those of the first cycle lie ahead of training.
    assert seconds(slow)["other"] >= (CYCLES - 1) * MOVES * SLOW
    assert slow.evaluation.may_be_rollouts_s == 0
    quick = played(QUICK, datasets=(1, 2, 3, 4), passes=passes).summary(tmp_path / "quick")
    took = CYCLES * (MOVES * FORWARD + (MOVES - 1) * QUICK)
    assert seconds(quick)["evaluation"] == took
    assert quick.evaluation.may_be_rollouts_s == pytest.approx(took / 1e9)


@pytest.mark.parametrize(
    "what",
    [
        {"datasets": (1, 1, 1, 1)},  # a loader is built for each epoch
        {"datasets": (1, 2, 2, 2)},
        {"datasets": (0, 0, 0, 0)},  # an older recording
        {"datasets": (1, 2, 3, 4), "updates_first": UPDATES},
        {"datasets": (1, 2, 3, 4), "has_losses": True},
    ],
)
def test_other_loaders_that_are_built_anew_leave_evaluation_what_it_is(tmp_path, what):
    found = played(SLOW, **what).summary(tmp_path)
    assert seconds(found)["evaluation"] == CYCLES * (MOVES * FORWARD + (MOVES - 1) * SLOW) + (
        CYCLES * MOVES * US if what.get("has_losses") else 0
    )
    assert found.evaluation.may_be_rollouts_s == 0


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
    assert found.evaluation.may_be_rollouts_s == 0


@pytest.mark.parametrize(
    ("updates_first", "told"),
    [(0, "EVALUATION, OR ROLLOUTS: it takes"), (UPDATES, "EVALUATION: it takes")],
)
def test_the_headline_says_both_where_it_may_be_either(tmp_path, updates_first, told):
    run = played(QUICK, forward=4 * MS, updates_first=updates_first)
    verdict = run.summary(tmp_path).verdict
    assert verdict.bottleneck == "evaluation"
    assert verdict.headline.startswith(told)
