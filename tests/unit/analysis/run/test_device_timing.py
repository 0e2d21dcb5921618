"""How a run's device times were come by, and what that allows to be said."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind, Topic

STEPS = 40


def trained(
    directory: Path,
    *,
    device: str | None = "cuda:0",
    waits: int = 0,
    asked: bool = False,
    **environment: bool,
) -> RunSummary:
    """A run in which waiting for the device took 20 us of each wait."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    if device:
        run.text(Topic.ENVIRONMENT, {"device": device})
    if environment:
        run.text(Topic.ENVIRONMENT, environment)
    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader)
        run.leaf(Kind.TRANSFER, 5 * MS, site=run.site(50), flags=1, value=8)
        run.forward(2 * MS, flags=LEARNS)
        run.update(optimizer)
    run.stop(loader)
    for count in (waits // 2, waits):
        if count:
            run.record(Kind.SYNCHRONIZED, run.now, run.now + count * 20 * US, value=count)
    return summarize(run.write(directory, options={"cuda_sync": asked}))


def test_host_time_alone_is_merged_and_says_what_would_tell(tmp_path: Path) -> None:
    summary = trained(tmp_path)
    assert summary.run.device_timing == "async"
    assert "--cuda-sync measures it" in summary.not_observed["devices"]
    assert summary.overhead.synchronizations is None


def test_a_synchronized_run_shows_each_phase_and_its_price_and_gives_no_verdict(
    tmp_path: Path,
) -> None:
    summary = trained(tmp_path, waits=400, asked=True)
    assert summary.run.device_timing == "synchronized"
    assert summary.verdict.bottleneck == "unknown"
    assert summary.overhead.synchronizations == 400
    assert summary.overhead.synchronized_s == pytest.approx(400 * 20e-6)
    assert "devices" not in summary.not_observed


def test_a_run_without_a_device_had_nothing_to_wait_for(tmp_path: Path) -> None:
    summary = trained(tmp_path, device=None, asked=True)
    assert summary.run.device_timing == "cpu"
    assert summary.verdict.bottleneck != "unknown"
    assert "no accelerator was used" in summary.not_observed["devices"]
    assert "devices" not in trained(tmp_path / "plain", device=None).not_observed


def test_calls_that_block_anyway_are_told(tmp_path: Path) -> None:
    summary = trained(tmp_path, launch_blocking=True)
    assert summary.not_observed["devices"].startswith("CUDA_LAUNCH_BLOCKING=1")
