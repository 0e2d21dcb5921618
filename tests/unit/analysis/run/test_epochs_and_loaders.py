"""Epochs, slow batches, samples, fetches, traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import ITEM_ON_CPU, LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Statistics
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import COLLATE_SHIFT, Kind, SyncFlag, TransferFlag


def test_slow_batches_are_counted_whole_and_by_their_excess_the_first_exempt(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for waits in ([900, 1, 600, 500, 499, 2], [1, 1, 1, 1, 1, 700]):
        run.iterate(loader)
        for wait in waits:
            run.next(loader, wait * MS)
            run.learn(optimizer)
        run.stop(loader)
    first, second = run.summary(tmp_path).epochs
    assert (first.slow_batches, second.slow_batches) == (2, 1)
    assert first.slow_total_s == pytest.approx(1.1)
    assert first.slow_excess_s == pytest.approx(0.1)
    assert first.first_batch_s == pytest.approx(0.9)
    assert first.data_wait_s == pytest.approx(1.602)
    assert first.seconds == pytest.approx((2502 * MS + 6 * 550 * US + 15 * US) / 1e9)
    assert second.start_s == pytest.approx(first.seconds)
    summary = summarize(run.write(tmp_path, options={"wait_threshold_s": 0.0015}))
    assert summary.wait_threshold_s == 0.0015
    assert [epoch.slow_batches for epoch in summary.epochs] == [4, 1]


def test_passes_that_ended_tell_how_long_a_pass_is(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for batches in (5, 3, 7, 2):
        run.iterate(loader)
        for _ in range(batches):
            run.next(loader, MS)
            run.learn(optimizer)
        if batches not in (3, 2):  # one is left by its loop, the last by the script's end
            run.stop(loader)
    (loader_entry,) = run.summary(tmp_path).loaders
    assert (loader_entry.ended, loader_entry.ended_batches, loader_entry.passes) == (2, [5, 7], 4)


def test_an_evaluation_of_one_batch_waits_for_its_first(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(), run.loader(42), run.optimizer()
    for _ in range(3):
        run.train_pass(loader, optimizer, 4)
        run.evaluation_pass(validation, 1, wait=20 * MS)
    evaluation = run.summary(tmp_path).evaluation
    assert (evaluation.data_wait_s, evaluation.first_batch_s) == pytest.approx((0, 0.060))


def test_samples_are_those_that_training_took(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(2):
        run.train_pass(loader, optimizer, 4, samples=[32, 32, 32, 5])
    training_ns = run.now - run.start
    run.iterate(loader)
    for _ in range(3):  # evaluates
        run.next(loader, samples=4)
        run.forward(flags=0)
    run.stop(loader)
    training = run.summary(tmp_path).training
    assert training.samples == 202
    assert training.samples_per_s == pytest.approx(202 / (training_ns / 1e9), rel=1e-3)


def test_workers_draw_ahead_of_what_is_taken(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    for _ in range(2):
        with run.span(Kind.LOADER_INIT, site=loader):
            for _ in range(4):
                run.leaf(Kind.SAMPLER, 1, site=loader, value=8)
        for _ in range(3):  # and then a break
            with run.span(Kind.LOADER_NEXT, site=loader, value=1):
                run.leaf(Kind.SAMPLER, 1, site=loader, value=8)
            run.learn(optimizer)
        run.yielded[loader] = 0
    assert run.summary(tmp_path).training.samples == 2 * 3 * 8


@pytest.mark.parametrize(
    ("metadata", "samples", "counted"),
    [
        ({"batch_sampler": "Buckets", "batch_size": None}, [3, 9, 4], 16),  # by its lists
        ({"is_iterable": True}, [1, 1, 1], None),
        ({"batch_sampler": None, "batch_size": None}, [1, 1, 1], None),
    ],
)
def test_what_samplers_tell_of_samples(tmp_path, metadata, samples, counted):
    run = FakeRun()
    run.train_pass(run.loader(**metadata), run.optimizer(), 3, samples=samples)
    summary = run.summary(tmp_path)
    assert summary.training.samples == counted
    assert (summary.training.samples_per_s is None) is (counted is None)
    assert ("training.samples" in summary.not_observed) is (counted is None)


def test_a_loaders_entry(tmp_path):
    run = FakeRun()
    loader = run.loader(84, num_workers=0, batch_size=4, length=3, dataset="Pictures")
    optimizer = run.optimizer()
    for _ in range(2):
        run.iterate(loader)
        for number in range(3):
            with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
                run.passes_time(5)  # the sampler
                run.fetch(800, 4, collate=100)
            run.learn(optimizer)
        run.stop(loader)
    (entry,) = run.summary(tmp_path).loaders
    assert (entry.site, entry.dataset, entry.batch_size) == ("train.py:84", "Pictures", 4)
    assert (entry.passes, entry.iterations, entry.length) == (2, 6, 3)
    assert entry.wait_total_s == pytest.approx(4 * 805e-9)
    assert entry.first_batch_s.mean == pytest.approx(805e-9)
    assert entry.init_s.n == 2
    assert entry.sampler_s == pytest.approx(30e-9)
    assert entry.end_s == pytest.approx(10e-6)
    assert entry.fetch.n == 6
    assert entry.fetch.collate_s == pytest.approx(600e-9)
    assert entry.fetch.dataset_s == pytest.approx(4200e-9)
    assert [(w["worker"], w["pid"], w["n"]) for w in entry.fetch.per_worker] == [(None, 4242, 6)]


PLAIN = {
    "is_asked_one_by_one": True,
    "samples_plainly": True,
    "holds_tensors": True,
    "sampler": "RandomSampler",
    "sampler_from": "torch",
    "batch_size": 64,
    "drop_last": True,
}
SHUFFLED = "sampler=BatchSampler(RandomSampler(dataset), 64, drop_last=True), batch_size=None"
BALANCED = {"sampler": "Balanced"}
BY_GENERATOR = {"samples_plainly": False, "samples_by_generator": True}
OWN_SAMPLER = "sampler=BatchSampler(sampler, 64, drop_last=False), batch_size=None"
OWN_GENERATOR = (
    "sampler=BatchSampler(RandomSampler(dataset, generator=...), 64, drop_last=False), "
    "batch_size=None"
)


def entry_of(tmp_path, **metadata):
    run = FakeRun()
    run.train_pass(run.loader(**metadata), run.optimizer(), 2)
    [loader] = run.summary(tmp_path).loaders
    return loader


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (PLAIN, SHUFFLED),
        ({**PLAIN, "drop_last": False, "samples_plainly": False}, OWN_SAMPLER),
        ({**PLAIN, "drop_last": False, **BY_GENERATOR}, OWN_GENERATOR),
        ({**PLAIN, "drop_last": False, **BALANCED, "sampler_from": "other"}, OWN_SAMPLER),
        ({**PLAIN, "drop_last": False, "sampler": "DistributedSampler"}, OWN_SAMPLER),
        # That of a package's own loader: its class may have made it.
        ({**PLAIN, **BALANCED, "sampler_from": "loader"}, None),
        ({**PLAIN, "samples_plainly": False, "sampler_from": "loader"}, None),
        # Lightning puts one into the loader that it builds anew.
        ({**PLAIN, "sampler": "DistributedSampler", "is_taken_over": True}, None),
        ({**PLAIN, "is_taken_over": True}, None),
        # Of a list of indices it would make nothing, nor could its samples be put into tensors.
        ({**PLAIN, "refuses_lists": True}, None),
        ({**PLAIN, "refuses_lists": True, "is_stackable": False}, None),
        ({**PLAIN, "refuses_lists": True, "is_stackable": True}, SHUFFLED),
        ({**PLAIN, "refuses_lists": False}, SHUFFLED),
        # An older run that does not tell.
        ({**PLAIN, "sampler_from": None, "samples_plainly": False}, None),
        ({**PLAIN, **BALANCED, "sampler_from": None}, None),
        ({**PLAIN, "sampler_from": None}, SHUFFLED),
        ({**PLAIN, "batch_sampler": "Buckets"}, None),
        ({**PLAIN, "is_asked_one_by_one": False}, None),
        ({**PLAIN, "batch_size": None}, None),
        ({**PLAIN, "built_by": "planted", "built_at": 0}, None),
        ({}, None),  # an older run
    ],
)
def test_how_a_loader_would_ask_for_whole_batches(tmp_path, metadata, expected):
    assert entry_of(tmp_path, **metadata).whole_batches == expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"sampler": "SequentialSampler", "batch_sampler": "BatchSampler"}, True),
        ({"sampler": "SequentialSampler", "batch_sampler": None}, True),
        ({"sampler": "RandomSampler", "batch_sampler": "BatchSampler"}, False),
        # The sampler that torch then has is asked by nobody.
        ({"sampler": "SequentialSampler", "batch_sampler": "Buckets"}, None),
        ({"sampler": "Balanced", "batch_sampler": "BatchSampler"}, None),
        ({}, None),
    ],
)
def test_whether_samples_come_in_their_order(tmp_path, metadata, expected):
    assert entry_of(tmp_path, **metadata).draws_in_order is expected


@pytest.mark.parametrize(
    ("metadata", "package"), [({"built_by": "planted"}, "planted"), ({"built_by": None}, None)]
)
def test_the_package_that_builds_a_loader(tmp_path, metadata, package):
    assert entry_of(tmp_path, built_at=0, **metadata).built_by == package


def test_fetches_of_workers_come_from_their_own_logs(tmp_path):
    run = FakeRun()
    loader = run.loader(num_workers=2)
    run.train_pass(loader, run.optimizer(), 4)
    run.write(tmp_path)
    for number in range(2):
        worker = FakeRun(pid=5000 + number, role="child")
        worker.texts = run.texts
        for _ in range(2):
            worker.fetch(1050, 8, collate=50, site=loader, flags=number + 1)
        path = tmp_path / "run" / "events" / f"{worker.pid}-1.events"
        path.write_bytes(worker.log_bytes())
    fetch = summarize(RunDirectory(tmp_path / "run")).loaders[0].fetch
    assert fetch.n == 4
    assert fetch.collate_s == pytest.approx(200e-9)
    assert [w["worker"] for w in fetch.per_worker] == [0, 1]
    assert fetch.wall_s.mean == pytest.approx(1050e-9)


def test_a_loader_in_a_dataset_keeps_its_collation_apart(tmp_path):
    run = FakeRun()
    loader, inner, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(loader)
    for number in range(3):
        with (
            run.span(Kind.LOADER_NEXT, site=loader, value=number + 1),
            run.span(Kind.FETCH, value=1 | 100 << COLLATE_SHIFT),
        ):
            with run.span(Kind.LOADER_NEXT, site=inner, value=1):
                run.fetch(50, 1, collate=10)
            run.passes_time(500)
        run.learn(optimizer)
    outer, inside = run.summary(tmp_path).loaders
    assert outer.fetch.collate_s == pytest.approx(300e-9)
    assert inside.fetch.collate_s == pytest.approx(30e-9)


def test_transfers_by_line_and_direction(tmp_path):
    run = FakeRun()
    here, there = run.site(12), run.site(30)
    run.train_pass(run.loader(), run.optimizer(), 2)
    h2d = TransferFlag.H2D
    run.leaf(Kind.TRANSFER, 100, site=here, flags=h2d | TransferFlag.PINNED, value=1 << 33)
    through = TransferFlag.NON_BLOCKING | TransferFlag.BY_LIBRARY
    run.leaf(Kind.TRANSFER, 300, site=here, flags=h2d | through, value=24)
    run.leaf(Kind.TRANSFER, 50, site=there, flags=TransferFlag.D2H, value=8)
    first, second = run.summary(tmp_path).transfers
    assert (first.site, first.direction, first.count) == ("train.py:12", "h2d", 2)
    assert first.bytes == (1 << 33) + 24
    assert first.host_s == pytest.approx(400e-9)
    assert (first.pinned_share, first.non_blocking_share) == (0.5, 0.5)
    assert (first.by_library_share, second.by_library_share) == (0.5, 0.0)
    assert first.device_s is None
    assert (second.site, second.direction) == ("train.py:30", "d2h")


def test_sync_points_of_host_tensors_are_counted_and_not_timed(tmp_path):
    run = FakeRun()
    line, other = run.site(50), run.site(51)
    run.train_pass(run.loader(), run.optimizer(), 2)
    for _ in range(3):
        run.leaf(Kind.SYNC, 10, site=line, flags=ITEM_ON_CPU)
    run.leaf(Kind.SYNC, 700, site=other, flags=SyncFlag.ITEM)
    run.leaf(Kind.SYNC, 30, site=other, flags=ITEM_ON_CPU)
    run.leaf(Kind.SYNC, 5, site=other, flags=SyncFlag.TOLIST)
    points = run.summary(tmp_path).sync_points
    assert [(p.site, p.kind, p.count, p.on_cpu) for p in points] == [
        ("train.py:51", "item", 2, 1),
        ("train.py:51", "tolist", 1, 0),
        ("train.py:50", "item", 3, 3),
    ]
    assert points[0].seconds == pytest.approx(700e-9)
    assert points[2].seconds is None


def test_statistics_of_steps(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(101):
        run.next(loader, step * US)
        run.forward(900 * US, flags=LEARNS)
        run.update(optimizer, 100 * US)
    step_s = run.summary(tmp_path).training.step_s
    assert isinstance(step_s, Statistics)
    assert (step_s.n, step_s.min, step_s.max) == (
        100,
        pytest.approx(1001e-6),
        pytest.approx(1.1e-3),
    )
    assert step_s.p50 == pytest.approx(1050.5e-6)
    assert step_s.mean == pytest.approx(1050.5e-6)


def passes_that_begin(tmp_path: Path, drawing: int, making: int, last: int) -> Loader:
    """Four passes of ten batches by the training process; the first of each draws and makes."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(4):
        run.iterate(loader)
        for place in range(10):
            with run.span(Kind.LOADER_NEXT, site=loader, value=place + 1):
                run.passes_time(drawing if place == 0 else 5 * US)
                run.fetch(making if place == 0 else last if place > 5 else 2 * MS, 8)
            run.learn(optimizer)
        run.stop(loader)
    [entry] = run.summary(tmp_path).loaders
    return entry


def test_what_later_passes_take_to_begin(tmp_path):
    entry = passes_that_begin(tmp_path, 90 * MS, 10 * MS, 2 * MS)
    assert entry.later_starts_s == pytest.approx(3 * 0.10001)
    assert entry.first_start_s == pytest.approx(0.10001)
    assert entry.sampler_starts_s == pytest.approx(3 * 0.09)


def test_a_buffer_that_is_filled_ahead_gives_its_time_back(tmp_path):
    entry = passes_that_begin(tmp_path, 0, 8 * MS, 0)
    assert entry.later_starts_s == 0
    assert entry.first_start_s == pytest.approx(0.008, rel=0.01)
    assert entry.first_given_back_s == pytest.approx(4 * 0.002)
    assert passes_that_begin(tmp_path, 0, 80 * MS, 0).first_given_back_s == 0
    assert passes_that_begin(tmp_path, 0, 8 * MS, 2 * MS).first_given_back_s == 0


def test_what_the_sampler_takes_while_workers_are_started(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    for _ in range(3):
        with run.span(Kind.LOADER_INIT, site=loader):
            run.leaf(Kind.SAMPLER, 50 * MS, site=loader)
            run.passes_time(10 * MS)
        for _ in range(5):
            run.next(loader, 1 * MS)
            run.leaf(Kind.SAMPLER, 1 * MS, site=loader)
            run.learn(optimizer)
        run.stop(loader)
    [entry] = run.summary(tmp_path).loaders
    assert entry.later_starts_s == pytest.approx(2 * 0.061)
    assert entry.sampler_starts_s == pytest.approx(2 * 0.05, rel=0.05)
    assert entry.sampler_s == pytest.approx(3 * 0.055)
