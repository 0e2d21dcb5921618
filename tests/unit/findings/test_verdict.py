"""What the headline names by why the device was idle, and how loudly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainprof.analysis.run.evidence import DeviceEvidence
from trainprof.analysis.summary.run import Verdict
from trainprof.findings.verdict import device_verdict

SITES = {"data": "train.py:41", "transfer": "train.py:50", "sync": "train.py:60"}


def told(
    low: float,
    high: float | None = None,
    *,
    keeps_up: bool = False,
    evaluation: float = 0.0,
    **idle: float,
) -> Verdict:
    high = low if high is None else high
    shares = {f"{cause}_s": share for cause, share in idle.items()} | {"unknown_s": high - low}
    evidence = DeviceEvidence((low, high), shares, keeps_up)
    return device_verdict(evidence, training_s=20.0, evaluation_s=evaluation * 20, sites=SITES)


@pytest.mark.parametrize(
    ("found", "bottleneck", "level"),
    [
        (told(0.3, loader=0.6), "data", "highly"),
        (told(0.4, loader=0.15, host=0.12), "data", "moderately"),
        (told(0.8, loader=0.15), "compute", "moderately"),
        (told(0.85, loader=0.04), "compute", "not"),
        (told(0.95, loader=0.05), "compute", "not"),
        (told(0.6, copy=0.3), "transfer", "highly"),
        (told(0.6, sync=0.3), "sync", "highly"),
        (told(0.6, host=0.3), "host", "highly"),
        (told(0.6, checkpoint=0.3), "checkpoint", "highly"),
        (told(0.6, evaluation=0.4), "evaluation", "highly"),
        (told(0.2, 0.9, keeps_up=True), "host", "highly"),
        (told(0.2, 0.9), "unknown", None),
        (told(0.2, 0.7, loader=0.3), "data", "highly"),
        (told(0.6, 0.9), "compute", "not"),
    ],
)
def test_the_largest_certain_reason_is_named(
    found: Verdict, bottleneck: str, level: str | None
) -> None:
    assert (found.bottleneck, found.level) == (bottleneck, level)


def test_headlines_have_share_time_and_line() -> None:
    assert told(0.3, loader=0.6).headline == (
        "DATA-BOUND: the device is idle while the loop waits for train.py:41 in 60 % of training "
        "time, 12.00 of 20.00 s"
    )
    assert told(0.6, copy=0.3).headline == (
        "COPY-BOUND: the device does nothing but copy, most of it at train.py:50, in 30 % of "
        "training time, 6.00 of 20.00 s"
    )
    assert told(0.8, 0.85, loader=0.1).headline == (
        "COMPUTE-BOUND, moderately data-bound: the device was at work in 80 to 85 % of training "
        "time; next comes waiting for data with 10 %"
    )
    assert told(0.2, 0.9).headline.startswith("NO VERDICT: the device was at work in 20 to 90 %")


def test_of_several_ranks_it_is_the_mean_and_all_must_keep_up() -> None:
    one = DeviceEvidence((0.2, 0.3), {"loader_s": 0.7}, keeps_up=True)
    other = DeviceEvidence((0.4, 0.5), {"loader_s": 0.5}, keeps_up=False)
    found = DeviceEvidence.common([one, other])
    assert found.busy == (0.2, 0.5)
    assert found.idle == {"loader_s": pytest.approx(0.6)}
    assert not found.keeps_up
    assert DeviceEvidence.common([one, replace(other, keeps_up=True)]).keeps_up
