"""Tensors that the model goes through element by element, by planted reads of their values."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import Kind, SyncFlag, Topic

STEPS, MASK, OTHER = 60, 31, 35
BOOL = SyncFlag.BOOL | SyncFlag.ON_CPU


def train(
    run: FakeRun,
    tmp_path: Path,
    *,
    reads: int = 1_000,
    apart_ns: int = 10 * US,
    flags: int = BOOL,
    in_steps: int = STEPS,
    counted: int | None = None,
) -> RunSummary:
    """Steps with a forward of 10 ms, and as long as its reads take; the last one at another line.

    Args:
        reads: Of values in each forward.
        apart_ns: From one to the next.
        flags: Of them.
        in_steps: So many forwards read any.
        counted: In so many forwards they are counted; None: in all.
    """
    site, other = (run.text(Topic.SITE, ["model.py", n, "forward"]) for n in (MASK, OTHER))
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(5 * MS)
            for read in range(reads if step < in_steps else 0):
                if counted is None or step < counted:
                    at = other if read == reads - 1 else site
                    run.record(Kind.SYNC, run.now, run.now, site=at, flags=flags)
                run.passes_time(apart_ns)
            run.passes_time(5 * MS)
        if step + 1 == counted:
            told = {"reads_counted_until": run.now, "flag": int(SyncFlag.BOOL)}
            run.text(Topic.ENVIRONMENT, told)
        run.backward(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize("counted", [None, 20])
def test_all_the_time_between_reads_counts(tmp_path: Path, counted: int | None) -> None:
    told = train(FakeRun(), tmp_path, counted=counted)
    reads = told.element_reads
    assert (reads.site, reads.part, reads.per_pass) == (f"model.py:{MASK}", "forward", 1_000)
    assert reads.seconds == pytest.approx(STEPS * 0.010, rel=0.01)
    [finding] = told.findings
    assert (finding.id, finding.site) == ("python_in_model", f"model.py:{MASK}")
    assert finding.is_at_most
    assert "1,000 values one by one in each" in finding.title
    # A step of 26 ms would be one of 16.
    assert finding.evidence["likely_speedup"] == pytest.approx(26 / 16, rel=0.05)


@pytest.mark.parametrize(
    "healthy",
    [
        {"reads": 12},  # a decision in each layer
        {"apart_ns": 150 * US, "reads": 100},  # as much is computed between as a layer does
        {"in_steps": 2},  # what is filled once
        {"flags": SyncFlag.BOOL},  # of a device's tensors
        {"counted": 1},  # nobody knows of the others
    ],
)
def test_reads_that_are_no_loop_over_elements(tmp_path: Path, healthy: dict[str, int]) -> None:
    told = train(FakeRun(), tmp_path, **healthy)
    assert told.findings == []


def test_with_a_compiler_nothing_is_said(tmp_path: Path) -> None:
    run = FakeRun()
    run.leaf(Kind.COMPILE, MS)
    assert train(run, tmp_path).element_reads is None


def test_on_a_device_nothing_is_found(tmp_path: Path) -> None:
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    assert train(run, tmp_path).findings == []
