"""Which passes train, which evaluate, and how many of each there are."""

from __future__ import annotations

import pytest
from support.events import LEARNS, MS, US, FakeRun, seconds

from trainprof.record.schema import ForwardFlag, Kind


def counts(found):
    training = found.training
    return training.steps, training.iterations, training.epochs, found.evaluation.iterations


def roles(found):
    return {loader.site: loader.role for loader in found.loaders}


def test_train_validation_and_test_loaders(tmp_path):
    run = FakeRun()
    train, validation, test = run.loader(1), run.loader(2), run.loader(3)
    optimizer = run.optimizer()
    for _ in range(3):
        run.train_pass(train, optimizer, 5)
        run.evaluation_pass(validation, 2)
    run.evaluation_pass(test, 4)
    found = run.summary(tmp_path)
    assert counts(found) == (15, 15, 3, 10)
    assert roles(found) == {
        "train.py:1": "training",
        "train.py:2": "evaluation",
        "train.py:3": "evaluation",
    }
    assert [e.stage for e in found.epochs] == ["training", "evaluation"] * 3 + ["evaluation"]
    assert [e.index for e in found.epochs] == [0, 0, 1, 1, 2, 2, 3]
    assert [e.steps for e in found.epochs if e.stage == "training"] == [5, 5, 5]


def test_two_training_loaders_zipped(tmp_path):
    run = FakeRun()
    labelled, unlabelled, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for _ in range(2):
        run.iterate(labelled)
        run.iterate(unlabelled)
        for _ in range(6):
            run.next(labelled)
            run.next(unlabelled)
            run.learn(optimizer)
        run.stop(labelled)
    found = run.summary(tmp_path)
    assert counts(found) == (12, 12, 2, 0)
    assert set(roles(found).values()) == {"training"}
    assert "evaluation" not in seconds(found)


def test_a_new_iterator_for_each_step(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for step in range(30):
        run.iterate(loader)
        run.next(loader)
        run.learn(optimizer)
        if step % 10 == 9:
            run.iterate(validation)
            run.next(validation)
            run.forward(flags=0)
    found = run.summary(tmp_path)
    assert counts(found) == (30, 30, 30, 3)
    assert found.training.steady_steps >= 20


def test_an_endless_loader_is_one_epoch(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    run.iterate(loader)
    for _ in range(50):
        run.next(loader)
        run.learn(optimizer)
    found = run.summary(tmp_path)
    assert counts(found) == (50, 50, 1, 0)
    assert found.epochs[0].seconds == pytest.approx((run.now - run.start) / 1e9)


@pytest.mark.parametrize("look_ahead", [False, True])
def test_epochs_of_one_batch_each_followed_by_validation(tmp_path, look_ahead):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for _ in range(5):
        run.iterate(loader)
        run.next(loader)
        if look_ahead:
            run.stop(loader)
        run.learn(optimizer)
        if not look_ahead:
            run.stop(loader)
        run.evaluation_pass(validation, 1)
    assert counts(run.summary(tmp_path)) == (5, 5, 5, 5)


def test_the_accuracy_on_the_training_set_is_evaluation(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    took = 0
    for _ in range(4):
        run.train_pass(loader, optimizer, 5)
        took += run.evaluation_pass(loader, 5)
    found = run.summary(tmp_path)
    assert counts(found) == (20, 20, 4, 20)
    assert roles(found) == {"train.py:1": "training"}
    assert seconds(found)["evaluation"] == took


def test_a_peek_and_a_pass_for_statistics_are_no_epochs(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    run.iterate(loader)
    run.next(loader)  # next(iter(loader)) to look at shapes
    run.iterate(loader)
    for _ in range(6):  # mean and deviation: no model
        run.next(loader)
        run.passes_time(10 * US)
    run.stop(loader)
    for _ in range(3):
        run.train_pass(loader, optimizer, 6)
    found = run.summary(tmp_path)
    assert counts(found) == (18, 18, 3, 0)
    assert found.phases.training_s * 1e9 == pytest.approx(3 * (10 + 6 * 650 + 5) * US)
    assert seconds(found)["data_wait"] == (5 + 15) * 100 * US


def test_teachers_without_gradients_are_training(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    run.iterate(loader)
    for _ in range(8):
        run.next(loader)
        run.forward(flags=0)
        run.learn(optimizer)
    run.stop(loader)
    found = run.summary(tmp_path)
    assert counts(found) == (8, 8, 1, 0)
    assert "evaluation" not in seconds(found)


def test_a_loader_of_prompts_for_rollouts_is_training(tmp_path):
    run = FakeRun()
    prompts, optimizer = run.loader(1), run.optimizer()
    run.iterate(prompts)
    for _ in range(4):
        run.next(prompts)
        for _ in range(3):
            run.forward(flags=0)
        for _ in range(5):
            run.learn(optimizer)
    run.stop(prompts)
    found = run.summary(tmp_path)
    assert counts(found) == (20, 4, 1, 0)
    assert roles(found) == {"train.py:1": "training"}


def test_inference_only(tmp_path):
    run = FakeRun()
    loader = run.loader(1)
    run.passes_time(MS)
    took = run.evaluation_pass(loader, 30)
    found = run.summary(tmp_path)
    assert counts(found) == (0, 0, 0, 30)
    assert found.training.step_source == "none"
    assert seconds(found) == {"startup": MS, "evaluation": took}
    assert found.verdict.bottleneck == "unknown"
    assert "NO TRAINING STEPS" in found.verdict.headline


def test_a_pass_without_a_model_is_neither(tmp_path):
    run = FakeRun()
    loader = run.loader(1)
    run.iterate(loader)
    for _ in range(5):
        run.next(loader)
    run.stop(loader)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "other"}
    assert counts(found) == (0, 0, 0, 0)
    assert seconds(found)["data_wait"] == 400 * US


def test_evaluation_that_forgets_no_grad(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    took = 0
    for _ in range(3):
        run.train_pass(loader, optimizer, 4)
        took += run.evaluation_pass(validation, 2, flags=1)
    found = run.summary(tmp_path)
    assert counts(found) == (12, 12, 3, 6)
    assert seconds(found)["evaluation"] == took


@pytest.mark.parametrize(
    ("flags", "is_evaluation"),
    [
        (ForwardFlag.GRAD, True),
        (0, True),
        (ForwardFlag.TRAINING, True),  # batch norms computed anew
        (LEARNS, False),  # a loss of all batches, and one backward behind it
    ],
)
def test_so_does_an_evaluation_of_what_trains(tmp_path, flags, is_evaluation):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    took = 0
    for _ in range(3):
        run.train_pass(loader, optimizer, 4)
        took += run.evaluation_pass(loader, 4, flags=flags)
    found = run.summary(tmp_path)
    assert counts(found)[3] == (12 if is_evaluation else 0)
    assert seconds(found).get("evaluation", 0) == (took if is_evaluation else 0)
    assert roles(found) == {"train.py:1": "training"}


def test_a_model_that_trains_in_evaluation_mode_evaluates_only_without_gradients(tmp_path):
    """Its batch norms keep what they were pretrained with."""
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    for _ in range(3):
        run.iterate(loader)
        for _ in range(4):
            run.next(loader)
            run.forward(flags=ForwardFlag.GRAD)
            run.backward()
            run.update(optimizer)
        run.stop(loader)
        run.evaluation_pass(loader, 4, flags=ForwardFlag.GRAD)
    assert counts(run.summary(tmp_path))[3] == 0


def test_a_teacher_with_gradients_is_no_evaluation(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    for _ in range(3):
        run.iterate(loader)
        for _ in range(4):
            run.next(loader)
            run.forward(flags=ForwardFlag.GRAD)
            run.learn(optimizer)
        run.stop(loader)
    found = run.summary(tmp_path)
    assert counts(found) == (12, 12, 3, 0)
    assert "evaluation" not in seconds(found)


def test_a_run_that_ended_before_the_first_backward_of_an_epoch(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    for _ in range(2):
        run.train_pass(loader, optimizer, 4)
    run.iterate(loader)
    run.next(loader)
    run.forward(flags=LEARNS)
    assert counts(run.summary(tmp_path)) == (8, 9, 3, 0)


def test_a_loader_consumed_by_a_prefetch_thread(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    for _ in range(2):
        run.thread = 1
        at = run.now
        run.iterate(loader)
        for _ in range(5):
            run.next(loader, 500 * US)
        run.stop(loader)
        run.thread, run.now = 0, at + 500 * US  # the first batch is there
        for _ in range(5):
            run.learn(optimizer)
            run.passes_time(60 * US)
    found = run.summary(tmp_path)
    assert counts(found) == (10, 10, 2, 0)
    assert "data_wait" not in seconds(found)
    assert [loader.thread for loader in found.loaders] == ["other"]
    assert found.epochs[0].start_s == 0 < found.phases.initialization_s


def test_persistent_workers_reset_inside_creation_is_one_pass(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1, num_workers=2, persistent_workers=True), run.optimizer()
    for epoch in range(3):
        if epoch == 0:
            with run.span(Kind.LOADER_INIT, site=loader):
                run.passes_time(10)
                run.leaf(Kind.LOADER_RESET, 20, site=loader)
        else:
            run.leaf(Kind.LOADER_RESET, 20, site=loader)
        for number in range(4):
            run.leaf(Kind.LOADER_NEXT, 100, site=loader, value=number + 1)
            run.learn(optimizer)
        run.stop(loader)
    found = run.summary(tmp_path)
    assert counts(found) == (12, 12, 3, 0)
    assert seconds(found)["loader_start"] == 70
    assert found.loaders[0].passes == 3


def test_the_training_thread_is_the_one_that_updates(tmp_path):
    run = FakeRun()
    optimizer = run.optimizer()
    for _ in range(50):
        run.forward(10)  # the main thread serves
    run.thread = 1
    for _ in range(5):
        run.learn(optimizer)
    assert counts(run.summary(tmp_path))[0] == 5


def test_a_validation_loader_made_anew_each_time_counts_as_itself(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(1), run.optimizer()
    for epoch in range(3):
        run.train_pass(loader, optimizer, 4)
        run.evaluation_pass(run.loader(10 + epoch), 2)
    assert counts(run.summary(tmp_path)) == (12, 12, 3, 6)


@pytest.mark.parametrize("mode", [LEARNS, ForwardFlag.GRAD])
@pytest.mark.parametrize("is_new_iterator", [False, True])
def test_loaders_whose_losses_are_summed_for_one_backward(tmp_path, mode, is_new_iterator):
    """Each has its own forward, and the other's batch is taken after that."""
    run = FakeRun()
    source, target, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(source)
    run.iterate(target)
    for _ in range(30):
        for loader in (source, target):
            if is_new_iterator:
                run.iterate(loader)
            run.next(loader)
            run.forward(flags=mode)
        run.backward()
        run.update(optimizer)
    found = run.summary(tmp_path)
    assert set(roles(found).values()) == {"training"}
    assert counts(found)[3] == 0
    assert "evaluation" not in seconds(found)


def test_losses_of_several_steps_of_two_loaders_are_accumulated(tmp_path):
    run = FakeRun()
    source, target, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(source)
    run.iterate(target)
    for batch in range(60):
        for loader in (source, target):
            run.next(loader)
            run.forward()
        run.backward()
        if batch % 2:
            run.update(optimizer)
    assert set(roles(run.summary(tmp_path)).values()) == {"training"}


@pytest.mark.parametrize("is_new_iterator", [False, True])
@pytest.mark.parametrize(
    ("every", "batches", "mode"),
    [
        pytest.param(1, 1, 0, id="in each step, without gradients"),
        pytest.param(1, 1, ForwardFlag.GRAD, id="in each step, in evaluation mode"),
        pytest.param(1, 4, LEARNS, id="some batches in each step, as in training"),
        pytest.param(5, 1, LEARNS, id="now and then, as in training"),
    ],
)
def test_batches_that_are_evaluated_within_training_are_not_learnt_from(
    tmp_path, every, batches, mode, is_new_iterator
):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(loader)
    run.iterate(validation)
    for step in range(30):
        run.next(loader)
        run.learn(optimizer)
        if step % every == 0:
            for _ in range(batches):
                if is_new_iterator:
                    run.iterate(validation)
                run.next(validation)
                run.forward(flags=mode)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "training", "train.py:2": "evaluation"}
    assert counts(found) == (30, 30, 1, batches * 30 // every)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_look_at_the_validation_set_ahead_of_training_is_none_of_it(tmp_path, batches):
    """`next(iter(validation))`, and then the model is built."""
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for _ in range(batches):
        run.iterate(validation)
        run.next(validation)
    run.passes_time(2_000 * MS)
    begins = run.now
    took = 0
    for _ in range(3):
        run.train_pass(loader, optimizer, 5)
        took += run.evaluation_pass(validation, 4)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "training", "train.py:2": "evaluation"}
    assert counts(found) == (15, 15, 3, 12)
    assert found.phases.initialization_s * 1e9 == pytest.approx(begins - run.start)
    assert seconds(found)["evaluation"] == took


def test_nor_is_one_at_the_test_set_that_is_used_once_more_in_the_end(tmp_path):
    run = FakeRun()
    loader, test, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(test)
    run.next(test)
    run.passes_time(2_000 * MS)
    begins = run.now
    run.train_pass(loader, optimizer, 5)
    run.evaluation_pass(test, 4)
    found = run.summary(tmp_path)
    assert roles(found) == {"train.py:1": "training", "train.py:2": "evaluation"}
    assert found.phases.initialization_s * 1e9 == pytest.approx(begins - run.start)


def test_a_look_ahead_does_not_make_batches_evaluated_in_each_step_training(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for used in (loader, validation, validation):
        run.iterate(used)
        run.next(used)
    for _ in range(10):
        run.next(loader)
        run.learn(optimizer)
        run.iterate(validation)
        run.next(validation)
        run.forward(flags=0)
    assert roles(run.summary(tmp_path)) == {"train.py:1": "training", "train.py:2": "evaluation"}


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4)])
def test_new_iterators_of_two_loaders_for_each_step_train(tmp_path, sizes):
    run = FakeRun()
    loaders, optimizer = [run.loader(1), run.loader(2)], run.optimizer()
    for _ in range(10):
        for loader, size in zip(loaders, sizes, strict=True):
            run.iterate(loader)
            for _ in range(size):
                run.next(loader)
        run.learn(optimizer)
    found = run.summary(tmp_path)
    assert roles(found)["train.py:1"] == "training"
    assert found.phases.initialization_s == 0


def test_so_do_two_that_all_data_is_taken_of_ahead(tmp_path):
    run = FakeRun()
    loaders, optimizer = [run.loader(1), run.loader(2)], run.optimizer()
    for loader in loaders:
        run.iterate(loader)
        run.next(loader)
    for _ in range(10):
        run.learn(optimizer)
    assert set(roles(run.summary(tmp_path)).values()) == {"training"}
