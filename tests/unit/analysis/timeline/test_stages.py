"""Which iterations over loaders train, which evaluate, and how many of each there are."""

from __future__ import annotations

import pytest
from support.events import MS, US, FakeRun, seconds
from support.loops import Loop

from trainprof.record.schema import Kind

ROLES = {"training": "T", "evaluation": "E", "other": "-"}


def counts(summary):
    training = summary.training
    return training.steps, training.iterations, training.epochs, summary.evaluation.iterations


# Name: the loop; steps, iterations and epochs of training, iterations of evaluation; roles by line.
LOOPS = {
    "train, validation and test": (
        "3( i1 5( n1 l ) s1 [ i2 2( n2 f0 ) s2 ] ) [ i3 4( n3 f0 ) s3 ]",
        (15, 15, 3, 10),
        "TEE",
    ),
    "zipped": ("2( i1 i2 6( n1 n2 l ) s1 )", (12, 12, 2, 0), "TT"),
    "a new iterator for each step": ("3( 10( i1 n1 l ) [ i2 n2 f0 ] )", (30, 30, 30, 3), "TE"),
    "epochs of a batch each": ("5( i1 n1 l s1 [ i2 n2 f0 s2 ] )", (5, 5, 5, 5), "TE"),
    "accuracy on the training set": (
        "4( i1 5( n1 l ) s1 [ i1 5( n1 f0 ) s1 ] )",
        (20, 20, 4, 20),
        "T",
    ),
    "so, in evaluation mode": ("3( i1 4( n1 l ) s1 [ i1 4( n1 fg ) s1 ] )", (12, 12, 3, 12), "T"),
    "batch norms computed again": (
        "3( i1 4( n1 l ) s1 [ i1 4( n1 ft ) s1 ] )",
        (12, 12, 3, 12),
        "T",
    ),
    "a loss of all batches, learnt from later": ("3( i1 4( n1 l ) s1 i1 4( n1 f ) s1 )", None, "T"),
    "a model that trains in evaluation mode": (
        "3( i1 4( n1 fg b u ) s1 i1 4( n1 fg ) s1 )",
        (12, 12, 3, 0),
        "T",
    ),
    "a teacher": ("i1 8( n1 f0 l ) s1", (8, 8, 1, 0), "T"),
    "a teacher with gradients": ("3( i1 4( n1 fg l ) s1 )", (12, 12, 3, 0), "T"),
    "prompts for rollouts": ("i1 4( n1 3( f0 ) 5( l ) ) s1", (20, 4, 1, 0), "T"),
    "without a model": ("i1 5( n1 ) s1", (0, 0, 0, 0), "-"),
    "without no_grad": ("3( i1 4( n1 l ) s1 [ i2 2( n2 fg ) s2 ] )", (12, 12, 3, 6), "TE"),
    "ended ahead of an epoch's first backward": ("2( i1 4( n1 l ) s1 ) i1 n1 f", (8, 9, 3, 0), "T"),
    "updates on another thread": ("50( f ) @1 5( l )", (5, 5, 0, 0), ""),
    "losses of two are summed": ("i1 i2 30( n1 f n2 f b u )", (30, 30, 1, 0), "TT"),
    "so, with new iterators": ("30( i1 n1 f i2 n2 f b u )", (30, 30, 30, 0), "TT"),
    "all data taken ahead": ("i1 n1 i2 n2 10( l )", None, "TT"),
    "new iterators of two for each step": ("10( i1 n1 i2 n2 l )", None, "TT"),
    "evaluated in each step": ("i1 [ i2 ] 30( n1 l [ n2 f0 ] )", (30, 30, 1, 30), "TE"),
    "some batches in each step, as in training": (
        "i1 i2 30( n1 l 4( n2 f ) )",
        (30, 30, 1, 120),
        "TE",
    ),
    "now and then, as in training": ("i1 i2 6( 5( n1 l ) n2 f )", (30, 30, 1, 6), "TE"),
    "so, with new iterators, as in training": ("i1 6( 5( n1 l ) i2 n2 f )", (30, 30, 1, 6), "TE"),
    "an endless validation iterator": ("i1 [ i2 ] 3( 4( n1 l ) [ n2 f0 ] )", (12, 12, 1, 3), "TE"),
    "evaluation that looks ahead": (
        "i1 3( n1 l ) s1 [ i2 n2 2( n2 f0 ) s2 f0 ] i1 3( n1 l ) s1",
        (6, 6, 2, 3),
        "TE",
    ),
    "evaluation left by break": ("3( i1 2( n1 l ) s1 [ i2 2( n2 f0 ) ] + )", (6, 6, 3, 6), "TE"),
    "evaluation of a whole tensor": ("3( i1 4( n1 l ) s1 [ f0 + f0 ] )", (12, 12, 3, 0), "T"),
    "estimate_loss without a loader": ("3( [ f0 + f0 ] 3( l ) )", (9, 9, 0, 0), ""),
    "a rollout, the model in training mode": ("3( ft 3( l ) )", (9, 9, 0, 0), ""),
    # Nothing learns from the gradients of these: forces of a potential, or an attack.
    "evaluation takes gradients": (
        "3( i1 5( n1 l ) s1 [ i2 4( n2 fg b ) s2 ] )",
        (15, 15, 3, 12),
        "TE",
    ),
    "so, two batches at a time": (
        "i1 [ i2 ] 3( 10( n1 l ) [ 2( n2 fg b ) ] )",
        (30, 30, 1, 6),
        "TE",
    ),
    "an attack on the batch that trains": ("i1 10( n1 fg b l ) s1", (10, 10, 1, 0), "T"),
    "gradients of two are accumulated": ("i1 i2 20( n1 f b n2 f b u )", None, "TT"),
    "gradients without updates": ("i1 5( n1 f b ) s1 i2 5( n2 fg b ) s2", None, "TT"),
}


@pytest.mark.parametrize(("loop", "expected", "roles"), LOOPS.values(), ids=LOOPS)
def test_what_trains_and_what_evaluates(tmp_path, loop, expected, roles):
    played = Loop().play(loop)
    summary = played.run.summary(tmp_path)
    assert expected is None or counts(summary) == expected
    by_line = sorted(summary.loaders, key=lambda loader: int(loader.site.split(":")[1]))
    assert "".join(ROLES[loader.role] for loader in by_line) == roles
    if "[" in loop or (expected is not None and expected[3] == 0):
        assert seconds(summary).get("evaluation", 0) == played.evaluated_ns


def test_epochs_and_evaluations_are_listed_in_order(tmp_path):
    epochs = Loop().play(LOOPS["train, validation and test"][0]).run.summary(tmp_path).epochs
    assert [e.stage for e in epochs] == ["training", "evaluation"] * 3 + ["evaluation"]
    assert [e.index for e in epochs] == [0, 0, 1, 1, 2, 2, 3]
    assert [e.steps for e in epochs if e.stage == "training"] == [5, 5, 5]
    run = Loop().play("i1 50( n1 l )").run  # an endless one
    [epoch] = run.summary(tmp_path / "endless").epochs
    assert epoch.steps == 50
    assert epoch.seconds == pytest.approx((run.now - run.start) / 1e9)


def test_a_peek_and_an_iteration_for_statistics_are_no_epochs(tmp_path):
    summary = Loop().play("i1 n1 i1 6( n1 + ) s1 3( i1 6( n1 l ) s1 )").run.summary(tmp_path)
    assert counts(summary) == (18, 18, 3, 0)
    assert summary.phases.training_s * 1e9 == pytest.approx(3 * (10 + 6 * 650 + 5) * US)
    assert seconds(summary)["data_wait"] == (5 + 15) * 100 * US


def test_inference_only(tmp_path):
    played = Loop().play("~ [ i1 30( n1 f0 ) s1 ]")
    summary = played.run.summary(tmp_path)
    assert counts(summary) == (0, 0, 0, 30)
    assert summary.training.step_source == "none"
    assert seconds(summary) == {"startup": 2_000 * MS, "evaluation": played.evaluated_ns}
    assert summary.verdict.bottleneck == "unknown"


@pytest.mark.parametrize(
    "loop",
    [
        "i2 n2 | 3( i1 5( n1 l ) s1 [ i2 4( n2 f0 ) s2 ] )",
        "2( i2 n2 ) | 3( i1 5( n1 l ) s1 [ i2 4( n2 f0 ) s2 ] )",
        "i2 n2 | i1 5( n1 l ) s1 [ i2 4( n2 f0 ) s2 ]",
    ],
)
def test_a_look_at_the_validation_set_ahead_of_training_is_none_of_it(tmp_path, loop):
    """`next(iter(validation))`, and then the model is built."""
    played, (ahead, training) = Loop(), loop.split(" | ")
    begins = played.play(f"{ahead} ~").run.now
    summary = played.play(training).run.summary(tmp_path)
    assert {x.site: x.role for x in summary.loaders} == {
        "train.py:1": "training",
        "train.py:2": "evaluation",
    }
    assert summary.phases.initialization_s * 1e9 == pytest.approx(begins - played.run.start)
    assert seconds(summary)["evaluation"] == played.evaluated_ns


def test_evaluation_with_gradients_is_no_part_of_a_step(tmp_path):
    summary = Loop().play(LOOPS["evaluation takes gradients"][0]).run.summary(tmp_path)
    assert summary.training.step_s.max < 700e-6


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
    summary = run.summary(tmp_path)
    assert counts(summary) == (10, 10, 2, 0)
    assert "data_wait" not in seconds(summary)
    assert [loader.thread for loader in summary.loaders] == ["other"]
    assert summary.epochs[0].start_s == 0 < summary.phases.initialization_s


def test_persistent_workers_reset_inside_creation_is_one_iteration(tmp_path):
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
    summary = run.summary(tmp_path)
    assert counts(summary) == (12, 12, 3, 0)
    assert seconds(summary)["loader_start"] == 70
    assert summary.loaders[0].passes == 3
