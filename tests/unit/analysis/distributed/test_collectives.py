"""Calls of torch.distributed, by line; what a forward or an evaluation calls is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.summary.code import Collective
from trainprof.record.schema import COLLECTIVES, Kind

REDUCE, BARRIER = COLLECTIVES.index("all_reduce"), COLLECTIVES.index("barrier")


def averaging_step(run: FakeRun, optimizer: int, site: int, ns: int) -> None:
    """Two gradients averaged between backward and update, a shard gathered in the forward."""
    with run.span(Kind.FORWARD, flags=LEARNS):
        run.leaf(Kind.COLLECTIVE, MS, site=site, flags=REDUCE)
        run.passes_time(MS)
    with run.span(Kind.BACKWARD):
        run.passes_time(2 * MS)
    for _ in range(2):
        run.leaf(Kind.COLLECTIVE, ns, site=site, flags=REDUCE)
    run.passes_time(MS)
    run.update(optimizer)


def test_calls_between_the_parts_of_a_step(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, here, there = run.optimizer(), run.site(50), run.site(60)
    run.leaf(Kind.COLLECTIVE, 500 * MS, site=there, flags=BARRIER)  # ahead of training
    for _ in range(40):
        averaging_step(run, optimizer, here, 4 * MS)
    run.leaf(Kind.COLLECTIVE, 20 * MS, site=there, flags=BARRIER)
    averaging_step(run, optimizer, here, 4 * MS)
    run.thread = 1
    run.leaf(Kind.COLLECTIVE, 70 * MS, site=there, flags=BARRIER)  # another thread's
    run.thread = 0
    summary = run.summary(tmp_path)
    assert summary.collectives == [
        Collective("train.py:50", "all_reduce", 82, pytest.approx(0.328)),
        Collective("train.py:60", "barrier", 1, pytest.approx(0.020)),
    ]
    assert summary.verdict.bottleneck == "communication"
    assert summary.verdict.site == "train.py:50"
    assert "most of it all_reduce at train.py:50" in summary.verdict.headline
    assert summary.findings == []


def test_evaluations_own_are_part_of_it(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, site = run.optimizer(), run.site(50)
    training, evaluation = run.loader(41), run.loader(43)
    run.train_pass(training, optimizer, 30)
    run.iterate(evaluation)
    for _ in range(2):
        run.next(evaluation)
        run.leaf(Kind.COLLECTIVE, 100 * MS, site=site, flags=REDUCE)
        with run.span(Kind.FORWARD):
            run.passes_time(MS)
    run.stop(evaluation)
    run.train_pass(training, optimizer, 30)
    assert run.summary(tmp_path).collectives == []
