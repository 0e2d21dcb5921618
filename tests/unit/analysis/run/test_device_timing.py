"""How a run's device times were come by, and what that allows to be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind, Topic


def trained(
    directory: Path, *, waits: int = 0, asked: bool = False, **environment: Any
) -> RunSummary:
    """A run in which waiting for the device took 20 us of each wait."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.text(Topic.ENVIRONMENT, environment)
    run.iterate(loader)
    for _ in range(40):
        run.next(loader)
        run.leaf(Kind.TRANSFER, 5 * MS, site=run.site(50), flags=1, value=8)
        run.forward(2 * MS, flags=LEARNS)
        run.update(optimizer)
    run.stop(loader)
    for count in (waits // 2, waits):
        if count:
            run.record(Kind.SYNCHRONIZED, run.now, run.now + count * 20 * US, value=count)
    return summarize(run.write(directory, options={"cuda_sync": asked}))


GPU = {"device": "cuda:0"}


@pytest.mark.parametrize(
    ("how", "timing", "reason"),
    [
        (GPU, "async", "--cuda-sync measures it"),
        (GPU | {"waits": 400, "asked": True}, "synchronized", None),
        ({"asked": True}, "cpu", "no GPU"),
        ({}, "cpu", None),
        (GPU | {"launch_blocking": True}, "async", "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_how_the_device_was_timed(
    tmp_path: Path, how: dict[str, Any], timing: str, reason: str | None
) -> None:
    summary = trained(tmp_path, **how)
    assert summary.run.device_timing == timing
    assert (reason or "") in summary.not_observed.get("devices", "")
    assert ("devices" in summary.not_observed) is (reason is not None)
    is_synchronized = timing == "synchronized"  # which shows each phase, at a price
    assert timing == "async" or (summary.verdict.bottleneck == "unknown") is is_synchronized
    assert summary.overhead.synchronizations == (400 if is_synchronized else None)
    waited_s = pytest.approx(400 * 20e-6) if is_synchronized else None
    assert summary.overhead.synchronized_s == waited_s
