"""How batches came from workers, from planted records."""

from __future__ import annotations

import numpy as np
import pytest
from support.events import MS, FakeRun

from trainprof.analysis.loading.delivery import READY_NS, delivery_of, lost_workers, worker_table
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag

S = 1_000_000_000


def take(
    run: FakeRun, loader: int, number: int, *, blocked: int, receive: int, told: int | None = None
) -> None:
    """A `next` as the probes see it, with 1 ms of something else.

    Args:
        told: What is recorded of receiving, where its CPU is told too.
    """
    with run.span(Kind.LOADER_NEXT, site=loader, value=number):
        start = run.now
        run.passes_time(blocked + receive + MS)
        flags = 0 if told is None else NextPartsFlag.CPU_TOLD
        value = receive if told is None else told
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
    [found] = run.summary(tmp_path).loaders
    assert found.blocked_s == pytest.approx(2 * (0.040 + (READY_NS - 1) / 1e9))
    assert found.receive_s == pytest.approx(6 * 0.003)
    assert found.ready_share == pytest.approx(2 / 6)
    assert found.wait_total_s == pytest.approx(found.blocked_s + found.receive_s + 6 * 0.001)


def test_working_is_told_from_waiting_for_the_worker(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    run.iterate(loader)
    for number in range(1, 5):
        told = 3 * MS | 1000 << RECEIVE_CPU_SHIFT
        take(run, loader, number, blocked=MS, receive=3 * MS, told=told)
        run.learn(optimizer)
    [found] = run.summary(tmp_path).loaders
    assert found.receive_s == pytest.approx(3 * 0.003)
    assert found.receive_cpu_s == pytest.approx(3 * 0.001)


def test_of_older_recordings_what_receiving_worked_is_not_known(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    run.iterate(loader)
    for number in range(1, 4):
        take(run, loader, number, blocked=MS, receive=3 * MS)
        run.learn(optimizer)
    [found] = run.summary(tmp_path).loaders
    assert (found.receive_s, found.receive_cpu_s) == (pytest.approx(2 * 0.003), None)


def test_each_loader_has_its_own(tmp_path):
    run = FakeRun()
    one, other, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for loader in (one, other):
        run.iterate(loader)
    for number in range(1, 4):
        take(run, one, number, blocked=10 * MS, receive=0)
        take(run, other, number, blocked=0, receive=5 * MS)
        run.learn(optimizer)
    first, second = run.summary(tmp_path).loaders
    assert (first.blocked_s, first.receive_s) == pytest.approx((0.020, 0.0))
    assert (second.blocked_s, second.receive_s) == pytest.approx((0.0, 0.010))


def test_without_workers_nothing_is_delivered(tmp_path):
    run = FakeRun()
    run.train_pass(run.loader(), run.optimizer(), 4)
    [found] = run.summary(tmp_path).loaders
    assert (found.blocked_s, found.receive_s, found.ready_share) == (None, None, None)


def test_a_single_batch_has_no_share_of_ready_ones():
    run = FakeRun()
    take(run, 1, 1, blocked=10, receive=10)
    log = run.log()
    found = delivery_of(log.details, log.events)
    assert (found["blocked_s"], found["ready_share"]) == (0.0, None)


@pytest.mark.parametrize(
    ("code", "status", "signal"),
    [(0, 0, None), (7, 7, None), (255, 255, None), (-9, None, 9), (-15, None, 15)],
)
def test_a_lost_worker_by_status_or_signal(code, status, signal):
    run = FakeRun()
    for _ in range(2):  # found more than once
        run.passes_time(S)
        run.record(
            Kind.WORKER_LOST, run.now, run.now, site=1, value=77 | (code & 0xFFFF) << 32, flags=3
        )
    assert lost_workers(run.log().details, run.start) == [
        {"pid": 77, "worker": 2, "status": status, "signal": signal, "at_s": 1.0}
    ]


def test_whose_worker_a_process_was_at_what_time():
    run = FakeRun()
    for at, loader, pid in ((100, 1, 77), (300, 2, 77), (200, 3, 78)):
        run.record(Kind.WORKER, at, at + 10, site=loader, value=pid, flags=1)
    workers = worker_table(run.log().details)
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
    [found] = run.summary(tmp_path).loaders
    assert found.pin_s == pytest.approx(0.006)
