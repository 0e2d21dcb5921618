"""Validation on tensors that the script holds, beside a loader that trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.events import LEARNS, US, FakeRun, seconds

from trainprof.record.schema import ForwardFlag, Kind

STEPS = 24
FORWARD, LOSS = 70 * US, 10 * US


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
@pytest.mark.parametrize("every", [4, 8, STEPS])
def test_now_and_then_in_either_mode(tmp_path: Path, mode: int, every: int) -> None:
    def step(run: FakeRun, optimizer: int, number: int) -> None:
        run.learn(optimizer)
        if number % every == every - 1:
            validates(run, mode)

    assert trained(tmp_path, step)["evaluation"] == STEPS // every * (FORWARD + LOSS)


def test_in_each_step_in_evaluation_mode(tmp_path: Path) -> None:
    def step(run: FakeRun, optimizer: int, number: int) -> None:
        run.learn(optimizer)
        validates(run, 0)

    found = trained(tmp_path, step)
    assert found["evaluation"] == STEPS * (FORWARD + LOSS)
    assert found["forward"] == STEPS * 200 * US


def test_behind_each_epoch(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(4):
        run.train_pass(loader, optimizer, 6)
        validates(run, ForwardFlag.TRAINING)
    assert seconds(run.summary(tmp_path))["evaluation"] == 4 * (FORWARD + LOSS)


def metric_of_the_batch(run: FakeRun, optimizer: int, number: int) -> None:
    run.learn(optimizer)
    validates(run, ForwardFlag.TRAINING)


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


def teacher_of_the_next_batch(run: FakeRun, optimizer: int, number: int) -> None:
    run.learn(optimizer)
    validates(run, 0, of=7)


def fake_for_the_judge(run: FakeRun, optimizer: int, number: int) -> None:
    """The generator's update comes first."""
    run.learn(optimizer)
    validates(run, ForwardFlag.TRAINING)
    run.learn(optimizer)


def judge_trained_twice(run: FakeRun, optimizer: int, number: int) -> None:
    for _ in range(2):
        validates(run, ForwardFlag.TRAINING)
        run.learn(optimizer)
    run.learn(optimizer)


def part_by_part(run: FakeRun, optimizer: int, number: int) -> None:
    """What is frozen encodes each part of a batch."""
    for _ in range(4):
        validates(run, 0)
        run.learn(optimizer)


@pytest.mark.parametrize(
    "step",
    [
        metric_of_the_batch,
        samples_or_rollouts,
        acts_in_each_step,
        teacher,
        teacher_of_the_next_batch,
        fake_for_the_judge,
        judge_trained_twice,
        part_by_part,
    ],
)
def test_what_training_may_need_is_no_evaluation(
    tmp_path: Path, step: Callable[[FakeRun, int, int], None]
) -> None:
    assert "evaluation" not in trained(tmp_path, step)


def test_a_dry_run_ahead_of_training_is_none(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    validates(run, ForwardFlag.TRAINING)
    for _ in range(3):
        run.train_pass(loader, optimizer, 6)
    assert "evaluation" not in seconds(run.summary(tmp_path))


def test_without_a_loader_what_is_in_training_mode_may_be_anything(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    for number in range(STEPS):
        run.forward(flags=LEARNS)
        run.backward()
        run.update(optimizer)
        if number % 4 == 3:
            validates(run, ForwardFlag.TRAINING)
    assert "evaluation" not in seconds(run.summary(tmp_path))
