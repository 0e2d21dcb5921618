"""Which iterations over loaders train, which evaluate, and how many of each there are."""

from __future__ import annotations

import pytest
from support.events import MS, FakeRun, seconds
from support.loops import Loop

from trainprof.record.schema import Kind

ROLES = {"training": "T", "evaluation": "E", "other": "-"}


def counts(summary):
    training = summary.training
    return training.steps, training.iterations, training.epochs, summary.evaluation.iterations


# Name: roles by line, steps, iterations and epochs of training, iterations of evaluation; the loop.
LOOPS = {
    "train, validation and test": (
        "TEE 15 15 3 10: 3( i1 5( n1 l ) s1 [ i2 2( n2 f0 ) s2 ] ) [ i3 4( n3 f0 ) s3 ]"
    ),
    "zipped": "TT 12 12 2 0: 2( i1 i2 6( n1 n2 l ) s1 )",
    "epochs of a batch each": "TE 5 5 5 5: 5( i1 n1 l s1 [ i2 n2 f0 s2 ] )",
    "accuracy on the training set": "T 12 12 3 12: 3( i1 4( n1 l ) s1 [ i1 4( n1 fg ) s1 ] )",
    "so, of some batches": "T 12 12 3 9: 3( i1 4( n1 l ) s1 [ i1 2( n1 f0 ) n1 ] )",
    "so, by a count": "T 12 12 3 6: 3( i1 4( n1 l ) s1 [ i1 2( n1 f0 ) ] )",
    "so, in training mode": "T 12 12 3 9: 3( i1 4( n1 l ) s1 [ i1 3( n1 ft ) ] )",
    "so, with gradients": "T 12 12 3 9: 3( i1 4( n1 l ) s1 [ i1 2( n1 fg ) n1 ] )",
    "so, inside an epoch": (
        "T 20 20 2 12: 2( i1 4( n1 l ) 2( [ i1 2( n1 f0 ) n1 ] r1 3( n1 l ) ) s1 )"
    ),
    "so, to its end": "T 8 8 1 8: i1 6( n1 l ) [ i1 8( n1 f0 ) s1 ] r1 2( n1 l ) s1",
    "so, before its last batch": ("T 12 12 3 6: 3( i1 3( n1 l ) [ i1 2( n1 f0 ) ] r1 n1 l s1 )"),
    "a batch for the model's shapes": "T 12 12 3 0: i1 n1 f0 3( i1 4( n1 l ) s1 )",
    "cut off ahead of a backward": "T 8 10 3 0: 2( i1 4( n1 l ) s1 ) i1 n1 f n1",
    "a loss of all batches, learnt from later": "T: 3( i1 4( n1 l ) s1 i1 4( n1 f ) s1 )",
    "a model that trains in evaluation mode": (
        "T 12 12 3 0: 3( i1 4( n1 fg b u ) s1 i1 4( n1 fg ) s1 )"
    ),
    "a teacher with gradients": "T 12 12 3 0: 3( i1 4( n1 fg l ) s1 )",
    "prompts for rollouts": "T 20 4 1 0: i1 4( n1 3( f0 ) 5( l ) ) s1",
    "without a model": "- 0 0 0 0: i1 5( n1 ) s1",
    "without no_grad": "TE 12 12 3 6: 3( i1 4( n1 l ) s1 [ i2 2( n2 fg ) s2 ] )",
    "ended ahead of an epoch's first backward": "T 8 9 3 0: 2( i1 4( n1 l ) s1 ) i1 n1 f",
    "updates on another thread": ". 5 5 0 0: 50( f ) @1 5( l )",
    "losses of two are summed": "TT 30 30 1 0: i1 i2 30( n1 f n2 f b u )",
    "so, with new iterators": "TT 30 30 30 0: 30( i1 n1 f i2 n2 f b u )",
    "all data taken ahead": "TT: i1 n1 i2 n2 10( l )",
    "new iterators of two for each step": "TT: 10( i1 n1 i2 n2 l )",
    "evaluated in each step": "TE 30 30 1 30: i1 [ i2 ] 30( n1 l [ n2 f0 ] )",
    "some batches in each step, as in training": "TE 30 30 1 120: i1 i2 30( n1 l 4( n2 f ) )",
    "now and then, as in training": "TE 30 30 1 6: i1 i2 6( 5( n1 l ) n2 f )",
    "so, with new iterators, as in training": "TE 30 30 1 6: i1 6( 5( n1 l ) i2 n2 f )",
    "an endless validation iterator": "TE 12 12 1 3: i1 [ i2 ] 3( 4( n1 l ) [ n2 f0 ] )",
    "evaluation that looks ahead": (
        "TE 6 6 2 3: i1 3( n1 l ) s1 [ i2 n2 2( n2 f0 ) s2 f0 ] i1 3( n1 l ) s1"
    ),
    "of one batch that looks ahead": "TE 6 6 2 2: 2( i1 3( n1 l ) s1 [ i2 n2 s2 f0 ] )",
    "evaluation of a whole tensor": "T 12 12 3 0: 3( i1 4( n1 l ) s1 [ f0 + f0 ] )",
    "estimate_loss without a loader": ". 9 9 0 0: 3( [ f0 + f0 ] 3( l ) )",
    "a rollout, the model in training mode": ". 9 9 0 0: 3( ft 3( l ) )",
    # Nothing learns from the gradients of these: forces of a potential, or an attack.
    "evaluation takes gradients": "TE 15 15 3 12: 3( i1 5( n1 l ) s1 [ i2 4( n2 fg b ) s2 ] )",
    "so, two batches at a time": "TE 30 30 1 6: i1 [ i2 ] 3( 10( n1 l ) [ 2( n2 fg b ) ] )",
    "an attack on the batch that trains": "T 10 10 1 0: i1 10( n1 fg b l ) s1",
    "gradients of two are accumulated": "TT: i1 i2 20( n1 f b n2 f b u )",
    "gradients without updates": "TT: i1 5( n1 f b ) s1 i2 5( n2 fg b ) s2",
}


@pytest.mark.parametrize("line", LOOPS.values(), ids=LOOPS)
def test_what_trains_and_what_evaluates(tmp_path, line):
    expected, loop = line.split(": ")
    roles, *numbers = expected.split()
    played = Loop().play(loop)
    summary = played.run.summary(tmp_path)
    assert numbers in ([], [*map(str, counts(summary))])
    by_line = sorted(summary.loaders, key=lambda loader: int(loader.site.split(":")[1]))
    assert "".join(ROLES[loader.role] for loader in by_line) == roles.strip(".")
    if "[" in loop or numbers[3:] == ["0"]:
        assert seconds(summary).get("evaluation", 0) == played.evaluated_ns


def test_epochs_and_evaluations_are_listed_in_order(tmp_path):
    epochs = (
        Loop().play(LOOPS["train, validation and test"].split(": ")[1]).run.summary(tmp_path).epochs
    )
    assert [e.stage for e in epochs] == ["training", "evaluation"] * 3 + ["evaluation"]
    assert [e.index for e in epochs] == [0, 0, 1, 1, 2, 2, 3]
    assert [e.steps for e in epochs if e.stage == "training"] == [5, 5, 5]
    run = Loop().play("i1 50( n1 l )").run  # an endless one
    [epoch] = run.summary(tmp_path / "endless").epochs
    assert epoch.steps == 50
    assert epoch.seconds == pytest.approx((run.now - run.start) / 1e9)


def test_an_epoch_with_evaluations_inside_ends_as_it_does(tmp_path):
    """The last one comes behind its last batch: its end is no batch of either iterator."""
    inside = "i1 3( n1 l ) [ i1 2( n1 f0 ) ] r1 3( n1 l ) [ i1 2( n1 f0 ) ] r1 s1"
    played = Loop().play(f"2( {inside} )")
    summary = played.run.summary(tmp_path)
    training = [epoch for epoch in summary.epochs if epoch.stage == "training"]
    assert [(epoch.iterations, epoch.steps) for epoch in training] == [(6, 6)] * 2
    assert sum(epoch.seconds for epoch in training) * 1e9 == pytest.approx(
        played.run.now - played.run.start
    )
    assert summary.loaders[0].ended_batches == [6, 6]


def test_inference_only(tmp_path):
    played = Loop().play("~ [ i1 30( n1 f0 ) s1 ]")
    summary = played.run.summary(tmp_path)
    assert counts(summary) == (0, 0, 0, 30)
    assert summary.training.step_source == "none"
    assert seconds(summary) == {"startup": 2_000 * MS, "evaluation": played.evaluated_ns}
    assert summary.verdict.bottleneck == "unknown"


@pytest.mark.parametrize("forward", ["f", "ft", "f0"])
def test_forwards_of_a_script_that_never_trains_are_evaluation(tmp_path, forward):
    """Whatever the model's mode, with gradients or without, and no loader feeds them."""
    played = Loop().play(f"~ [ 400( {forward} + ) {forward} ]")
    summary = played.run.summary(tmp_path)
    assert seconds(summary) == {"startup": 2_000 * MS, "evaluation": played.evaluated_ns}
    assert summary.phases.initialization_s == 2.0


def test_a_forward_of_a_script_that_fails_before_its_backward_is_no_evaluation(tmp_path):
    assert "evaluation" not in seconds(Loop().play("~ f").run.summary(tmp_path))


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
    summary = Loop().play(LOOPS["evaluation takes gradients"].split(": ")[1]).run.summary(tmp_path)
    assert summary.training.step_s.max < 700e-6


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
