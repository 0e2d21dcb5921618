"""The ledger against what was planted, to the nanosecond."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.events import ITEM_ON_CPU, LEARNS, MS, US, FakeRun, seconds
from support.loops import Loop

from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.timeline import ledger as ledger_module
from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.ledger import Window, attribute, update_seconds
from trainprof.record.schema import Kind, SyncFlag, Topic


def plain_run():
    """Start-up 2 s, 3 steps without python between, shutdown 2 s."""
    return Loop().play("~ i1 3( n1 l ) s1 ~").run


def test_a_plain_loop(tmp_path):
    run = plain_run()
    ledger = seconds(run.summary(tmp_path))
    assert ledger == {
        "startup": 2_000 * MS,
        "loader_start": 10 * US,
        "first_batch": 100 * US,
        "data_wait": 200 * US,
        "loader_end": 5 * US,
        "forward": 600 * US,
        "backward": 900 * US,
        "optimizer": 150 * US,
        "shutdown": 2_000 * MS,
    }
    assert sum(ledger.values()) == run.now - run.start


def test_what_runs_inside_another_span_is_charged_where_it_belongs(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader, 10)
    with run.span(Kind.LOADER_NEXT, site=loader, value=1):
        run.leaf(Kind.SAMPLER, 7, site=loader, value=4)
        with run.span(Kind.FETCH, value=4):
            run.forward(100)  # a teacher inside the dataset is data loading
            run.leaf(Kind.TRANSFER, 30, flags=1)
            run.leaf(Kind.GC, 20)
            run.passes_time(50)
    with run.span(Kind.FORWARD, flags=LEARNS):
        run.passes_time(1000)
        run.leaf(Kind.GC, 200)
        run.leaf(Kind.SYNC, 40, flags=ITEM_ON_CPU)  # counted, not timed
        run.leaf(Kind.SYNC, 60, flags=SyncFlag.ITEM)
        with run.span(Kind.COMPILE):
            run.backward(50)  # that AOTAutograd traces
            run.leaf(Kind.GC, 20)
            run.passes_time(600)
    run.leaf(Kind.LOSS, 80, flags=LEARNS)
    with run.span(Kind.BACKWARD):
        run.passes_time(2000)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(500)
            run.leaf(Kind.LOSS, 5)
    run.leaf(Kind.SCALER_UPDATE, 3)
    with run.span(Kind.SCALER_STEP, site=optimizer):
        run.passes_time(10)
        run.update(optimizer, 90)
    run.leaf(Kind.SCHEDULER_STEP, 4)
    run.leaf(Kind.CLIP_GRADIENTS, 2)
    run.leaf(Kind.ZERO_GRAD, 9)
    run.leaf(Kind.CHECKPOINT_SAVE, 300)
    run.leaf(Kind.SYNC, 25, flags=ITEM_ON_CPU)
    run.leaf(Kind.PLACEMENT, 11)
    run.stop(loader, 6)
    assert seconds(run.summary(tmp_path)) == {
        "loader_start": 10,
        "first_batch": 7 + 100 + 50,
        "loader_end": 6,
        "transfer": 30,
        "forward": 1000 + 40,
        "loss": 80,
        "backward": 2000,
        "recompute": 505,
        "optimizer": 3 + 100 + 4 + 2,
        "zero_grad": 9,
        "compile": 650,
        "checkpoint": 300,
        "sync": 60,
        "gc": 240,
        "other": 25 + 11,
    }


def test_python_inside_a_closure_is_told_from_the_update(tmp_path):
    """As Lightning does: the user's training_step is called from the optimizer's step."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader, 1)
    for _ in range(30):
        run.next(loader, 10)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(7)
            run.forward(100)
            run.mark(Kind.SYNC)
            run.passes_time(1000)
            run.leaf(Kind.ZERO_GRAD, 1)
            run.backward(200)
            run.passes_time(30)
        run.passes_time(3)
    run.stop(loader, 1)
    summary = run.summary(tmp_path)
    assert seconds(summary)["optimizer"] == 30 * 30
    assert seconds(summary)["other"] == 30 * (7 + 1000 + 3)
    assert summary.ledger.other_by_place == {
        "in the closure that optimizer.step calls (as Lightning does)": pytest.approx(30 * 1007e-9),
        "after the update": pytest.approx(30 * 3e-9),
    }
    assert summary.training.steps == 30
    assert summary.training.per_step_s["other"] == pytest.approx(1010e-9, rel=0.01)


def test_a_graph_that_torch_compile_made_is_part_of_the_span_around_it(tmp_path):
    run = FakeRun()
    graph = run.text(Topic.CLASS, "GraphModule.__new__.<locals>.GraphModuleImpl")
    model, optimizer = run.text(Topic.CLASS, "Net"), run.optimizer()
    run.forward(100, site=model)
    with run.span(Kind.BACKWARD):
        run.passes_time(10)
        run.forward(190, site=graph, flags=0)
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        run.forward(30, site=graph, flags=0)
    assert seconds(run.summary(tmp_path)) == {"forward": 100, "backward": 200, "optimizer": 30}


def test_a_model_is_transferred_only_where_there_is_a_device(tmp_path):
    run = plain_run()
    run.now += 1
    run.leaf(Kind.PLACEMENT, 500)
    assert "transfer" not in seconds(run.summary(tmp_path))
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    assert seconds(run.summary(tmp_path))["transfer"] == 500


def test_a_loader_inside_another_loaders_next_is_data_loading(tmp_path):
    run = FakeRun()
    loader, inner, optimizer = run.loader(41), run.loader(42), run.optimizer()
    run.iterate(loader)
    for number in range(3):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            run.evaluation_pass(inner, 2)
        run.learn(optimizer)
    summary = run.summary(tmp_path)
    assert "evaluation" not in seconds(summary)
    assert sum(seconds(summary).values()) == run.now - run.start


def sharpness_aware(run):
    """An optimizer may climb and clear the gradients, and call its closure then."""
    optimizer = run.optimizer("SAM#1")
    for _ in range(3):
        run.forward(100)
        run.backward(100)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(290)
            run.leaf(Kind.ZERO_GRAD, 1)
            run.passes_time(5)
            run.forward(100)
            run.backward(100)
            run.passes_time(400)


def several_closure_calls(run):
    """LBFGS computes between its calls of the closure: that is its own."""
    optimizer = run.optimizer("LBFGS#1")
    for _ in range(2):
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            for _ in range(3):
                run.passes_time(10)
                run.leaf(Kind.ZERO_GRAD, 1)
                run.forward(100)
                run.backward(200)


def never_trains(run):
    run.passes_time(500)
    run.leaf(Kind.CHECKPOINT_LOAD, 70)
    run.passes_time(30)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (sharpness_aware, {"optimizer": 3 * 690, "other": 15, "forward": 600, "backward": 600}),
        (several_closure_calls, {"forward": 600, "backward": 1200, "optimizer": 60}),
        (never_trains, {"startup": 530, "checkpoint": 70}),
    ],
)
def test_what_closures_do_is_not_the_optimizers_time(tmp_path, plant, expected):
    run = FakeRun()
    plant(run)
    ledger = seconds(run.summary(tmp_path))
    assert {key: ns for key, ns in ledger.items() if key != "zero_grad"} == expected


def test_evaluation_has_everything_inside(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    took = 0
    for _ in range(2):
        run.train_pass(loader, optimizer, 4)
        run.passes_time(1000)
        began = run.now
        run.iterate(validation)
        for _ in range(3):
            run.next(validation)
            run.leaf(Kind.TRANSFER, 20, flags=1)
            run.forward(70, flags=0)
            run.passes_time(13)  # argmax, sums
            run.leaf(Kind.GC, 11)
        run.stop(validation)
        took += run.now - began
        run.leaf(Kind.CHECKPOINT_SAVE, 77)
    summary = run.summary(tmp_path)
    ledger = seconds(summary)
    assert (ledger["evaluation"], ledger["other"], ledger["checkpoint"]) == (took, 2000, 154)
    assert not {"transfer", "gc"} & set(ledger)
    assert (summary.evaluation.iterations, summary.evaluation.passes) == (6, 2)
    assert summary.evaluation.seconds * 1e9 == pytest.approx(took, abs=1e-3)


def test_evaluation_at_start_and_end_is_not_the_training_phase(tmp_path):
    played = Loop().play("~ [ i2 2( n2 f0 ) s2 ] ~ | i1 4( n1 l ) s1 | ~ [ i3 3( n3 f0 ) s3 ]")
    summary = played.run.summary(tmp_path)
    ledger = seconds(summary)
    assert ledger["evaluation"] == played.evaluated_ns
    assert (ledger["startup"], ledger["shutdown"]) == (4_000 * MS, 2_000 * MS)
    assert "other" not in ledger
    assert round(summary.phases.training_s * 1e9) == 10 * US + 4 * 650 * US + 5 * US
    assert summary.training.per_step_s["evaluation"] == 0


@pytest.mark.parametrize(
    ("loop", "places"),
    [
        (
            "i1 4( n1 + f 2( + ) z 3( + ) b 4( + ) u 5( + ) ) s1",
            {
                "before the forward": 40,
                "between forward and backward": 200,
                "between backward and update": 160,
                "after the update": 200,
            },
        ),
        # Nothing marks where a step begins; and some forwards only choose what is learned from.
        (
            "4( 3( + ) f0 2( + ) f + b u )",
            {
                "between two forwards": 80,
                "between forward and backward": 40,
                "between the update and the next forward": 90,
            },
        ),
        # What may come anywhere tells nothing of the place around it.
        ("i1 4( n1 l 3( + g ) + ) s1", {"after the update": 160}),
    ],
)
def test_the_rest_is_split_by_its_place_in_the_loop(tmp_path, loop, places):
    summary = Loop().play(loop).run.summary(tmp_path)
    by_place = {name: round(s * 1e6) for name, s in summary.ledger.other_by_place.items()}
    assert by_place == places
    assert sum(by_place.values()) * US == seconds(summary)["other"]


KINDS = [k for k in Kind if k >= Kind.LOADER_INIT]


SPAN = (st.integers(0, 9), st.sampled_from(KINDS), st.integers(0, 127))
NODES = st.recursive(
    st.tuples(*SPAN, st.just([])),
    lambda inner: st.tuples(*SPAN, st.lists(inner, max_size=3)),
    max_leaves=25,
)


# The loop begins inside of a span, and nothing begins in it before it ends.
ENDS_AT_ONCE = [
    (0, Kind.BACKWARD, 0, [(1, Kind.LOADER_INIT, 1, [])]),
    (1, Kind.FETCH_CPU, 0, []),
    (0, Kind.LOADER_NEXT, 1, []),
]


# An evaluation that takes no time begins with the last span of a block.
EVALUATES_AT_ONCE = [
    (0, Kind.TRANSFER, 0, []),
    (0, Kind.FETCH_CPU, 0, [(0, Kind.FORWARD, 0, []), (1, Kind.BACKWARD, 0, [])]),
]


@settings(max_examples=40, deadline=None)
@example(ENDS_AT_ONCE, 0)
@example(EVALUATES_AT_ONCE, 0)
@given(st.lists(NODES, max_size=12), st.integers(0, 3))
def test_whatever_happens_the_ledger_sums_to_the_wall(tmp_path_factory, forest, value):
    run = FakeRun()
    loaders = [run.loader(41), run.loader(42)]

    def enter(tree):
        gap, kind, flags, children = tree
        run.passes_time(gap)
        with run.span(kind, site=loaders[flags & 1], value=value, flags=flags):
            run.passes_time(gap)
            for child in children:
                enter(child)

    for tree in forest:
        enter(tree)
    run.passes_time(3)
    summary = run.summary(tmp_path_factory.mktemp("run"))
    with mock.patch.object(ledger_module, "_BLOCK", 2):  # long runs are summed in parts
        in_parts = run.summary(tmp_path_factory.mktemp("run"))
    assert in_parts.ledger == summary.ledger
    assert in_parts.training == summary.training
    assert sum(seconds(summary).values()) == run.now - run.start
    assert min(summary.ledger.seconds.values()) >= 0
    assert set(summary.ledger.seconds) == set(LEDGER_KEYS)
    rest = sum(summary.ledger.other_by_place.values())
    assert rest == pytest.approx(summary.ledger.seconds["other"], abs=1e-12)


def updates_of(run, began=0):
    """Returns what each optimizer's steps took, in ns, from a time on."""
    events = run.events()
    nesting = nest(events)
    attribution = attribute(events, nesting, np.empty((0, 2), dtype=np.int64), has_device=False)
    window = Window(run.start, began or run.start, run.now, run.now)
    updates = update_seconds(events, nesting, attribution, window)
    return {number: round(spent_s * 1e9) for number, spent_s in updates.items()}


def two_optimizers(run, muon, adam):
    for _ in range(3):
        run.update(muon, 700 * US)
        run.update(adam, 50 * US)


def beside_steps(run, muon, adam):
    """Clipping, the scaler and the scheduler are nobody's."""
    run.leaf(Kind.CLIP_GRADIENTS, 900 * US)
    with run.span(Kind.SCALER_STEP, site=adam):
        run.passes_time(80 * US)
        run.update(adam, 50 * US)
    run.leaf(Kind.SCALER_UPDATE, 30 * US)
    run.leaf(Kind.SCHEDULER_STEP, 20 * US)
    with run.span(Kind.CLIP_GRADIENTS):
        run.leaf(Kind.SYNC, 40 * US, flags=ITEM_ON_CPU)


def with_a_closure(run, muon, adam):
    """What a step asks of tensors is its own, what a closure does is not."""
    with run.span(Kind.OPTIMIZER_STEP, site=adam):
        with run.span(Kind.CLOSURE):
            run.forward(500 * US)
            run.leaf(Kind.SYNC, 60 * US, flags=ITEM_ON_CPU)
            run.leaf(Kind.CLIP_GRADIENTS, 30 * US)
        run.leaf(Kind.SYNC, 4 * US, flags=ITEM_ON_CPU)
        run.leaf(Kind.GC, 8 * US)
        run.passes_time(10 * US)


@pytest.mark.parametrize(
    ("plant", "muon_us", "adam_us"),
    [
        (two_optimizers, 2_100, 150),
        (beside_steps, None, 50),
        (with_a_closure, None, 14),
    ],
)
def test_each_optimizer_has_its_own_time(plant, muon_us, adam_us):
    run = FakeRun()
    muon, adam = run.optimizer("Muon#1"), run.optimizer("Adam#2")
    plant(run, muon, adam)
    expected = {} if muon_us is None else {muon: muon_us * US}
    assert updates_of(run) == expected | {adam: adam_us * US}


def test_compiling_and_what_lies_ahead_of_the_loop_are_no_time_of_an_optimizer():
    run = FakeRun()
    optimizer = run.optimizer()
    run.update(optimizer, 9 * MS)
    began = run.now
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        with run.span(Kind.COMPILE):
            run.passes_time(400 * MS)
            run.backward()  # that AOTAutograd traces
        run.passes_time(3 * MS)
    assert updates_of(run, began) == {optimizer: 3 * MS}
    assert updates_of(FakeRun()) == {}
