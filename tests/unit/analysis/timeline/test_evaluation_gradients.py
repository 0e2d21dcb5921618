"""Evaluation that takes gradients itself, and training that looks like it."""

from __future__ import annotations

import pytest
from support.events import LEARNS, FakeRun, seconds

from trainprof.record.schema import ForwardFlag


def counts(found):
    training = found.training
    return training.steps, training.iterations, training.epochs, found.evaluation.iterations


def roles(found):
    return {loader.site: loader.role for loader in found.loaders}


def attacked(run, loader, mode=ForwardFlag.GRAD):
    """A batch that evaluation takes gradients for, of its inputs: forces, or an attack."""
    run.next(loader)
    run.forward(flags=mode)
    run.backward()


def _attacked_pass(run, loader, *, stop):
    began = run.now
    run.iterate(loader)
    for _ in range(4):
        attacked(run, loader)
    if stop:
        run.stop(loader)
    return run.now - began


@pytest.mark.parametrize("stop", [False, True])
def test_evaluation_may_take_gradients_that_nothing_learns_from(tmp_path, stop):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    took = 0
    for _ in range(3):
        run.train_pass(loader, optimizer, 5)
        took += _attacked_pass(run, validation, stop=stop)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "training", "train.py:2": "evaluation"}
    assert counts(found) == (15, 15, 3, 12)
    assert seconds(found)["evaluation"] == took
    assert found.training.step_s.max < 700e-6


def test_so_may_that_of_a_few_batches_at_a_time(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(loader)
    run.iterate(validation)
    for step in range(30):
        run.next(loader)
        run.learn(optimizer)
        if step % 10 == 9:
            attacked(run, validation)
            attacked(run, validation)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "training", "train.py:2": "evaluation"}
    assert (found.evaluation.passes, found.evaluation.iterations) == (3, 6)


@pytest.mark.parametrize(
    ("training", "other"),
    [
        pytest.param(LEARNS, LEARNS, id="a model that is left in training mode"),
        pytest.param(ForwardFlag.GRAD, ForwardFlag.GRAD, id="one that trains in evaluation mode"),
    ],
)
def test_gradients_are_learnt_from_unless_all_tells_that_they_are_not(tmp_path, training, other):
    """Those of two loaders are accumulated: only behind the second one's comes an update."""
    run = FakeRun()
    first, second, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(first)
    run.iterate(second)
    for _ in range(20):
        attacked(run, first, other)
        attacked(run, second, training)
        run.update(optimizer)
    assert set(roles(run.summary(tmp_path)).values()) == {"training"}


def test_an_attack_on_the_batch_that_trains_is_training(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    run.iterate(loader)
    for _ in range(10):
        attacked(run, loader)
        run.learn(optimizer)
    run.stop(loader)
    found = run.summary(tmp_path)
    assert counts(found) == (10, 10, 1, 0)
    assert "evaluation" not in seconds(found)


def test_without_updates_whose_place_is_known_all_gradients_are_learnt_from(tmp_path):
    run = FakeRun()
    loader, other = run.loader(1), run.loader(2)
    for used, mode in ((loader, LEARNS), (other, ForwardFlag.GRAD)):
        run.iterate(used)
        for _ in range(5):
            attacked(run, used, mode)
        run.stop(used)
    assert set(roles(run.summary(tmp_path)).values()) == {"training"}
