"""Loaders that are built anew for each use, that take turns, or that feed one phase each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.events import MS, US, FakeRun
from support.loops import Loop

from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, Topic


def _built_again(run: FakeRun, loader: int, **metadata: Any) -> int:
    """Returns the id of a loader built by the same line while something holds on to the first."""
    known = json.loads(run.texts[loader - 1][1])
    return run.text(Topic.LOADER, {**known, "serial": known.get("serial", 1) + 1, **metadata})


def _found(summary: Any) -> list[tuple[str, str, int, int]]:
    return [(x.site, x.role, x.passes, x.iterations) for x in summary.loaders]


def test_a_loader_built_anew_for_each_evaluation_is_one_loader(tmp_path):
    run = FakeRun()
    train, optimizer = run.loader(10, length=4), run.optimizer()
    evaluating = run.loader(10, length=3)
    for _ in range(3):
        run.train_pass(train, optimizer, 4)
        run.evaluation_pass(evaluating, 3)
        evaluating = _built_again(run, evaluating)
    summary = run.summary(tmp_path)
    assert _found(summary) == [
        ("train.py:10", "training", 3, 12),
        ("train.py:10", "evaluation", 3, 9),
    ]
    assert summary.evaluation.loaders == [summary.loaders[1].id]
    assert (summary.evaluation.iterations, summary.evaluation.passes) == (9, 3)
    evaluations = [x for x in summary.epochs if x.stage == "evaluation"]
    assert [(x.index, x.loader) for x in evaluations] == [
        (i, summary.loaders[1].id) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("line", "metadata", "of_training", "of_evaluation"),
    [
        (10, {}, ["evaluation"], ["training"]),
        (10, {"serial": 2, "sampler": "SequentialSampler"}, ["evaluation"], ["training"]),
        (20, {}, [], []),
        (10, {"site": 0}, [], []),  # of a place that is not known
        (10, {"built_by": "transformers", "built_at": 0}, [], []),
        (10, {"takes": ["dataset"], "call_ends_at": [10, 70]}, [], []),  # two calls in one line
        (10, {"takes": ["dataset"], "call_ends_at": [10, 30]}, ["evaluation"], ["training"]),
    ],
)
def test_what_else_a_line_builds(tmp_path, line, metadata, of_training, of_evaluation):
    run = FakeRun()
    train = run.loader(10, length=4, takes=["dataset"], call_ends_at=[10, 30])
    validation, optimizer = run.loader(line, length=3, **metadata), run.optimizer()
    for _ in range(2):
        run.train_pass(train, optimizer, 4)
        run.evaluation_pass(validation, 3)
    loaders = run.summary(tmp_path).loaders
    assert [x.role for x in loaders] == ["training", "evaluation"]
    assert [x.also_builds for x in loaders] == [of_training, of_evaluation]


@pytest.mark.parametrize(("serial", "also"), [(1, []), (2, ["training"])])
def test_a_line_that_builds_several_for_training(tmp_path, serial, also):
    """One after the other they are one that is recreated with other arguments."""
    run = FakeRun()
    optimizer = run.optimizer()
    for metadata in ({"serial": 1, "batch_size": 8}, {"serial": serial, "batch_size": 16}):
        run.train_pass(run.loader(10, **metadata), optimizer, 4)
    assert [x.also_builds for x in run.summary(tmp_path).loaders] == [also, also]


@pytest.mark.parametrize(
    ("numbers", "datasets", "is_new"),
    [
        ((1, 2, 3, 4), 4, True),
        ((1, 1, 1, 1), 1, False),
        ((1, 1, 2, 2), 2, False),
        ((0, 0, 0, 0), None, False),  # an older recording
    ],
)
@pytest.mark.parametrize("is_held", [False, True])
def test_how_many_datasets_loaders_built_anew_had(tmp_path, numbers, datasets, is_new, is_held):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    for number in numbers:
        run.mark(Kind.LOADER_BUILT, site=loader, value=number)
        run.train_pass(loader, optimizer, 4)
        loader = _built_again(run, loader) if is_held else loader
    (row,) = run.summary(tmp_path).loaders
    assert (row.built, row.datasets, row.passes) == (4, datasets, 4)
    assert row.is_rebuilt
    assert row.is_of_new_parts is is_new


@pytest.mark.parametrize(
    ("metadata", "uses", "iterations"),
    [
        pytest.param({}, "ab ab", [2, 2, 2], id="they take turns"),
        pytest.param({"length": 9}, "ab", [1, 1, 1], id="another length"),
        pytest.param({"dataset": "Test"}, "ab", [1, 1, 1], id="another dataset"),
        pytest.param({"dataset_number": 2}, "ab", [1, 1, 1], id="another one of its class"),
        pytest.param({}, "a b", [2, 2], id="one after the other"),
    ],
)
def test_which_loaders_of_one_line_are_kept_apart(tmp_path, metadata, uses, iterations):
    run = FakeRun()
    train, optimizer = run.loader(10), run.optimizer()
    first = run.loader(20, length=3)
    loaders = {"a": first, "b": _built_again(run, first, **metadata)}
    for used in uses.split():
        run.train_pass(train, optimizer, 4)
        for letter in used:
            run.evaluation_pass(loaders[letter], 3)
    assert [x.passes for x in run.summary(tmp_path).loaders] == iterations


def test_fetches_of_workers_go_to_the_first_of_loaders_built_anew(tmp_path):
    run = FakeRun()
    first = run.loader(num_workers=2)
    second = _built_again(run, first)
    optimizer = run.optimizer()
    run.train_pass(first, optimizer, 4)
    run.train_pass(second, optimizer, 4)
    run.write(tmp_path)
    for number, site in enumerate((second, 0)):  # forked: it inherits the id; spawned: it has none
        worker = FakeRun(pid=5000 + number, role="child")
        worker.texts = run.texts
        worker.fetch(1000, 8, site=site, flags=1)
        path = tmp_path / "run" / "events" / f"{worker.pid}-1.events"
        path.write_bytes(worker.log_bytes())
    (loader,) = summarize(RunDirectory(tmp_path / "run")).loaders
    assert loader.fetch.n == 2


@pytest.mark.parametrize(
    ("loop", "epochs", "iterations", "steps"),
    [
        pytest.param(
            "2( i1 5( n1 l ) s1 ) 3( i2 2( n2 l ) s2 )", 5, 16, [5, 5, 2, 2, 2], id="two phases"
        ),
        pytest.param("i1 5( n1 l ) i2 3( n2 l ) s2", 2, 8, [5, 3], id="the first left by a break"),
        pytest.param("3( i1 5( n1 l ) s1 i2 2( n2 l ) s2 )", 3, 21, None, id="by turns"),
        pytest.param("6( i1 n1 i2 n2 l )", 6, 6, None, id="two batches in every step"),
        pytest.param(
            "2( i1 i2 3( n1 n2 l ) s2 i2 3( n1 n2 l ) s1 )", 2, 12, None, id="zipped, one shorter"
        ),
        # Of 3 batches, accumulated by two: an update in the next epoch is not the last one's.
        pytest.param("2( i1 n1 n1 f b n1 f b u s1 f b )", 2, 6, [1, 1], id="accumulated"),
        pytest.param("2( i1 n1 3( n1 l ) s1 l ~ )", 2, 8, [4, 4], id="looks ahead"),
    ],
)
def test_epochs_and_iterations_of_several_loaders(tmp_path, loop, epochs, iterations, steps):
    summary = Loop().play(loop).run.summary(tmp_path)
    training = summary.training
    assert (training.epochs, training.iterations) == (epochs, iterations)
    if steps is not None:
        assert [(x.index, x.steps) for x in summary.epochs] == list(enumerate(steps))


@pytest.mark.parametrize(
    ("datasets", "epochs"), [((7, 7), 6), ((7, 8), 3), ((0, 0), 3)], ids=["one", "two", "unknown"]
)
def test_epochs_with_and_without_workers_are_epochs(tmp_path, datasets, epochs):
    run = FakeRun()
    loaders = run.loader(10, num_workers=2), run.loader(20, num_workers=0)
    optimizer = run.optimizer()
    for loader, dataset in zip(loaders, datasets, strict=True):
        run.passes_time(US)
        run.mark(Kind.LOADER_BUILT, site=loader, value=dataset)
    for _ in range(3):
        for loader in loaders:
            run.train_pass(loader, optimizer, 4)
    summary = run.summary(tmp_path)
    assert summary.training.epochs == epochs
    assert [epoch.steps for epoch in summary.epochs] == [4] * epochs


def test_iterators_that_give_no_batch_are_starts_but_no_passes(tmp_path):
    """Lightning's reload creates two for each epoch."""
    (row,) = Loop().play("i1 3( n1 l ) 3( i1 i1 3( n1 l ) )").run.summary(tmp_path).loaders
    assert (row.passes, row.starts, row.init_s.n) == (4, 7, 7)
    (unused,) = Loop().play("i1 2( l )").run.summary(tmp_path / "unused").loaders
    assert (unused.passes, unused.starts) == (1, 1)


def test_a_part_is_an_epoch_of_a_phase(tmp_path):
    run = Loop().play("2( i1 5( n1 l ) s1 ) 3( i2 2( n2 l ) s2 )").run
    third = run.summary(tmp_path, epoch=2)
    assert (third.training.steps, third.epochs[0].index) == (2, 2)


def test_an_epoch_has_the_waits_of_loaders_that_are_zipped_to_its_own(tmp_path):
    run = FakeRun()
    images, captions, inner = run.loader(10), run.loader(20), run.loader(30)
    seen_apart, optimizer = run.loader(40), run.optimizer()
    run.train_pass(seen_apart, optimizer, 4)  # an epoch of its own
    run.iterate(images)
    run.iterate(captions)
    for number in range(6):
        run.next(images, MS)
        with run.span(Kind.LOADER_NEXT, site=captions, value=number + 1):
            run.next(inner, 2 * MS)
            run.passes_time(3 * MS)
        run.learn(optimizer)
    run.stop(images)
    summary = run.summary(tmp_path)
    alone, both = (x for x in summary.epochs if x.stage == "training")
    assert alone.data_wait_s == pytest.approx(3 * 100e-6)
    assert both.loader == images
    assert both.data_wait_s == pytest.approx(5 * (0.001 + 0.005))
    assert both.first_batch_s == pytest.approx(0.001 + 0.005)


def test_the_last_step_of_a_loader_that_looks_ahead_belongs_to_its_epoch(tmp_path):
    first, _ = Loop().play("2( i1 n1 3( n1 l ) s1 l ~ )").run.summary(tmp_path).epochs
    assert first.seconds == pytest.approx((10 + 4 * 100 + 5 + 4 * 550) * US / 1e9)


def test_a_resumed_loader_has_a_first_batch_all_the_same(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.train_pass(loader, optimizer, 3)
    run.iterate(loader)
    run.yielded[loader] = 3  # torchdata's StatefulDataLoader counts on
    for wait in (9 * MS, 1 * MS):
        run.next(loader, wait)
        run.learn(optimizer)
    run.stop(loader)
    summary = run.summary(tmp_path)
    (entry,) = summary.loaders
    assert (entry.passes, entry.first_batch_s.n, entry.wait_s.n) == (2, 2, 3)
    assert summary.epochs[1].first_batch_s == pytest.approx(9e-3)
    assert summary.ledger.seconds["first_batch"] == pytest.approx(9.1e-3)


def _over_parts(tmp_path, lengths, **metadata):
    run = FakeRun()
    first, optimizer = run.loader(10, **metadata), run.optimizer()
    for number, length in enumerate(lengths):
        loader = _built_again(run, first, length=length, dataset_length=8 * length, serial=number)
        run.mark(Kind.LOADER_BUILT, site=loader, value=number + 1)
        run.train_pass(loader, optimizer, length)
    return run.summary(tmp_path).loaders


def test_many_loaders_over_parts_of_the_data_are_one(tmp_path):
    (row,) = _over_parts(tmp_path, [4, 6, 5, 7, 4], num_workers=2)
    assert (row.passes, row.iterations, row.built, row.datasets) == (5, 26, 5, 5)
    assert row.is_of_new_parts
    assert row.length is None
    assert row.draws_all is None


@pytest.mark.parametrize("lengths", [[4, 6, 5], [4, 6, 4, 6, 4]])
def test_a_few_loaders_of_one_line_are_kept_apart(tmp_path, lengths):
    """As those of cross-validation."""
    assert len(_over_parts(tmp_path, lengths)) == len(set(lengths))
