"""How batches came from workers, from planted records."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import MS, FakeRun

from trainprof.analysis.loading.delivery import READY_NS
from trainprof.analysis.loading.workers import WorkerTable
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag

S = 1_000_000_000


def take(run, loader, number, *, blocked, receive, cpu_us=None):
    """A `next` as the probes see it, with 1 ms of something else."""
    with run.span(Kind.LOADER_NEXT, site=loader, value=number):
        start = run.now
        run.passes_time(blocked + receive + MS)
        flags = 0 if cpu_us is None else NextPartsFlag.CPU_KNOWN
        value = receive | (cpu_us or 0) << RECEIVE_CPU_SHIFT
        run.record(Kind.NEXT_PARTS, start, start + blocked, site=loader, value=value, flags=flags)


def test_the_first_batch_of_a_pass_is_apart(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    for _ in range(2):
        run.iterate(loader)
        for number in range(1, 5):
            is_first, is_ready = number == 1, number == 4
            blocked = 500 * MS if is_first else READY_NS - 1 if is_ready else 20 * MS
            take(run, loader, number, blocked=blocked, receive=3 * MS)
            run.learn(optimizer)
        run.stop(loader)
    [row] = run.summary(tmp_path).loaders
    assert row.blocked_s == pytest.approx(2 * (0.040 + (READY_NS - 1) / 1e9))
    assert row.receive_s == pytest.approx(6 * 0.003)
    assert row.ready_share == pytest.approx(2 / 6)
    assert row.wait_total_s == pytest.approx(row.blocked_s + row.receive_s + 6 * 0.001)


@pytest.mark.parametrize("cpu_us", [1000, None])
def test_working_is_told_from_waiting_for_the_worker(tmp_path, cpu_us):
    """Of older recordings what receiving worked is not known."""
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    run.iterate(loader)
    for number in range(1, 5):
        take(run, loader, number, blocked=MS, receive=3 * MS, cpu_us=cpu_us)
        run.learn(optimizer)
    [row] = run.summary(tmp_path).loaders
    assert row.receive_s == pytest.approx(3 * 0.003)
    assert row.receive_cpu_s == (None if cpu_us is None else pytest.approx(3 * 0.001))


def test_each_loader_has_its_own_and_one_without_workers_none(tmp_path):
    run = FakeRun()
    loaders, optimizer = [run.loader(line) for line in (1, 2, 3)], run.optimizer()
    for loader in loaders:
        run.iterate(loader)
    for number in range(1, 4):
        take(run, loaders[0], number, blocked=10 * MS, receive=0)
        take(run, loaders[1], number, blocked=0, receive=5 * MS)
        run.next(loaders[2])
        run.learn(optimizer)
    first, second, third = run.summary(tmp_path).loaders
    assert (first.blocked_s, first.receive_s) == pytest.approx((0.020, 0.0))
    assert (second.blocked_s, second.receive_s) == pytest.approx((0.0, 0.010))
    assert (third.blocked_s, third.receive_s, third.ready_share) == (None, None, None)


def test_whose_worker_a_process_was_at_what_time():
    run = FakeRun()
    for at, loader, pid in ((100, 1, 77), (300, 2, 77), (200, 3, 78)):
        run.record(Kind.WORKER, at, at + 10, site=loader, value=pid, flags=1)
    workers = WorkerTable.of(run.log().details)
    times = np.array([50, 100, 299, 300, 10_000])
    assert workers.loader_of(77, times).tolist() == [0, 1, 1, 2, 2]
    assert workers.loader_of(78, times).tolist() == [0, 0, 3, 3, 3]
    assert workers.loader_of(79, times).tolist() == [0] * 5


def test_a_batch_is_pinned_while_its_loader_is_passed_over(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(pin_memory=True), run.optimizer()
    run.leaf(Kind.PIN, 40 * MS)  # the script's own
    run.iterate(loader)
    for number in range(1, 3):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number):
            run.leaf(Kind.PIN, 3 * MS)
        run.learn(optimizer)
    [row] = run.summary(tmp_path).loaders
    assert row.pin_s == pytest.approx(0.006)
