"""Training that is resumed takes batches and leaves them until it is where it left off."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import MS, FakeRun
from support.loops import Loop

from trainprof.analysis.pipeline.recorded_epoch import skipped_first
from trainprof.analysis.summary.finding import LIKELY
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.iterations import LEARNING
from trainprof.findings.summarize import summarize
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.schema import Kind

FETCH, COMPUTE = 20 * MS, 150 * MS


def resumed(tmp_path: Path, skipped: int, trained: int = 60, workers: int = 0) -> RunSummary:
    """A pass whose first batches are left; without workers all are made as they are asked for."""
    run, worker = FakeRun(), FakeRun(pid=5000, role="child")
    loader, optimizer = run.loader(num_workers=workers), run.optimizer()
    run.iterate(loader)
    began = run.now + 50 * MS if workers else run.now
    for number in range(skipped + trained):
        run.yielded[loader] = number + 1
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            if workers:
                worker.record(Kind.FETCH, began, began + FETCH, site=loader, value=8, flags=1)
                began += FETCH
                run.now = max(run.now + MS, began)
            else:
                run.fetch(FETCH, 8)
        run.passes_time(MS // 100)
        if number >= skipped:
            run.learn(optimizer, backward=COMPUTE)
            began = max(began, run.now - 2 * FETCH)
    run.stop(loader)
    directory = run.write(tmp_path, host={"usable_cores": 4, "cores": 4})
    if workers:
        worker.texts = run.texts
        path = directory.events / f"{worker.pid}-1{EVENT_LOG_SUFFIX}"
        path.write_bytes(worker.log_bytes())
    return summarize(directory)


@pytest.mark.parametrize("skipped", [0, 120])
def test_what_workers_would_give_is_of_the_batches_that_are_trained_on(tmp_path, skipped):
    [finding] = [x for x in resumed(tmp_path, skipped).findings if x.id == "serial_loading"]
    assert finding.evidence["wait_per_batch_s"] == pytest.approx(0.020, rel=0.01)
    assert finding.evidence["batch_s"] == pytest.approx(0.170, rel=0.01)
    assert finding.evidence[LIKELY] == pytest.approx(170 / 150, abs=0.01)


def test_workers_that_were_started_ahead_of_batches_that_are_left_took_no_longer(tmp_path):
    summary = resumed(tmp_path, 120, workers=1)
    [loader] = summary.loaders
    assert loader.bound.measured_step_s == pytest.approx(0.151, rel=0.01)
    assert summary.findings == []


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param("i1 4( n1 ) 20( n1 l )", id="looks ahead"),
        pytest.param("i1 3( 10( n1 + ) b u )", id="losses of ten batches go backwards together"),
        pytest.param("i1 20( n1 ) 20( l )", id="list(loader)"),
        pytest.param("i1 20( n1 l )", id="plainly"),
    ],
)
def test_batches_that_are_computed_with_later_are_not_left(loop: str) -> None:
    events = Loop().play(loop).run.events()
    nexts = events.where(events.is_kind(Kind.LOADER_NEXT))
    assert skipped_first(nexts, events.start[events.is_kind(Kind.FORWARD, *LEARNING)]) == 0
