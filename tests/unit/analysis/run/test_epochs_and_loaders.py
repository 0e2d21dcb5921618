"""Epochs, slow batches, samples, fetches, traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import ITEM_ON_CPU, LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.loader import Loader
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, SyncFlag, TransferFlag


def test_slow_batches_are_counted_whole_and_by_their_excess_the_first_too(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for waits in ([900, 1, 600, 500, 499, 2], [1, 1, 1, 1, 1, 700]):
        run.iterate(loader)
        for wait in waits:
            run.next(loader, wait * MS)
            run.learn(optimizer)
        run.stop(loader)
    first, second = run.summary(tmp_path).epochs
    assert (first.slow_batches, second.slow_batches) == (3, 1)
    assert first.slow_total_s == pytest.approx(2.0)
    assert first.slow_excess_s == pytest.approx(0.5)
    assert first.first_batch_s == pytest.approx(0.9)
    assert first.data_wait_s == pytest.approx(1.602)
    assert first.seconds == pytest.approx((2502 * MS + 6 * 550 * US + 15 * US) / 1e9)
    assert second.start_s == pytest.approx(first.seconds)
    summary = summarize(run.write(tmp_path, options={"wait_threshold_s": 0.0015}))
    assert summary.wait_threshold_s == 0.0015
    assert [epoch.slow_batches for epoch in summary.epochs] == [5, 1]


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
    "drop_last": False,
}
SHUFFLED = "RandomSampler(dataset)"
OWN_SAMPLER = "sampler"
OWN_GENERATOR = "RandomSampler(dataset, generator=...)"


@pytest.mark.parametrize(
    ("metadata", "sampler"),
    [
        ({}, SHUFFLED),
        ({"samples_plainly": False}, OWN_SAMPLER),
        ({"samples_plainly": False, "samples_by_generator": True}, OWN_GENERATOR),
        ({"sampler": "Balanced", "sampler_from": "other"}, OWN_SAMPLER),
        # That of a package's own loader: its class may have made it.
        ({"sampler": "Balanced", "sampler_from": "loader"}, None),
        # Lightning puts one into the loader that it builds anew.
        ({"sampler": "DistributedSampler", "is_taken_over": True}, None),
        # Of a list of indices it would make nothing, nor could its samples be put into tensors.
        ({"refuses_lists": True}, None),
        ({"refuses_lists": True, "is_stackable": True}, SHUFFLED),
        # An older run that does not tell.
        ({"sampler_from": None, "samples_plainly": False}, None),
        ({"batch_sampler": "Buckets"}, None),
        ({"is_asked_one_by_one": False}, None),
        ({"built_by": "planted", "built_at": 0}, None),
    ],
)
def test_how_a_loader_would_ask_for_whole_batches(tmp_path, metadata, sampler):
    run = FakeRun()
    run.train_pass(run.loader(**PLAIN | metadata), run.optimizer(), 2)
    [loader] = run.summary(tmp_path).loaders
    whole = f"sampler=BatchSampler({sampler}, 64, drop_last=False), batch_size=None"
    assert loader.whole_batches == (None if sampler is None else whole)


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
    assert step_s.n == 100
    figures = [step_s.min, step_s.max, step_s.p50, step_s.mean]
    assert figures == pytest.approx([1001e-6, 1.1e-3, 1050.5e-6, 1050.5e-6])


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
