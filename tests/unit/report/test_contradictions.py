"""What finds contradictions finds each kind that is planted, and none in a page as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.contradictions import WIDE, contradictions

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.finding import (
    IN_NOISE,
    LIKELY,
    LITTLE,
    SOME_RANKS,
    SYMPTOM,
    PassedOver,
)
from trainprof.analysis.summary.run import Phases, Verdict
from trainprof.report.page.page import render

HEALTHY = summaries.healthy()
WAITS = {"data_wait": 0.3, "forward": 0.7}
QUIET = replace(
    HEALTHY,
    training=replace(HEALTHY.training, per_step_s={"forward": 0.7, "backward": 0.3}),
    verdict=replace(
        HEALTHY.verdict, headline="Compute-bound: forward and backward are 100 % of a step."
    ),
)
GC = summaries.finding(
    id="gc_pauses", evidence={LIKELY: 1.2}, predicted_speedup=[1.1, 1.3], of_steps=False
)
SLOW = replace(summaries.slow_loader(), hot_lines=[], findings_from=0.04)


def of(summary: Any, old: str = "", new: str = "", **changes: Any) -> list[str]:
    summary = replace(summary, **changes)
    page = render(summary, WIDE)
    assert old in page
    return contradictions(summary, page.replace(old, new) if old else page)


IDLE = {"loader_s": 51.0, "copy_s": 10.0, "host_s": 6.0, "checkpoint_s": 4.0, "unknown_s": 3.0}
DEVICE = Device(
    0, "cuda:0", [0.26, 0.29], IDLE, {}, None, None, 99, {"forward": 10.0, "backward": 16.0}
)
ON_GPU = replace(
    summaries.accelerator(),
    devices=[DEVICE],
    phases=Phases(6.4, 100.0, 0.5),
    verdict=Verdict("data", "The GPU idles 51 % of training, waiting for data.", "highly", 0.51),
)


def verdict(bottleneck: str, share: float, text: str = "") -> Verdict:
    text = text or f"Each step spends {share * 100:.0f} % of its time there."
    return Verdict(bottleneck, text, "highly", share)


def test_pages_as_they_are_contradict_themselves_nowhere() -> None:
    for summary in (HEALTHY, QUIET, SLOW, ON_GPU, summaries.cut_off()):
        assert of(summary) == []
    assert of(QUIET, findings=[GC]) == []
    assert of(QUIET, findings=[GC], passed_over=[PassedOver(GC, SYMPTOM, root="x")]) != []


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("no words", of(HEALTHY, "1,250 steps", "None steps")),
        ("another headline", of(HEALTHY, HEALTHY.verdict.headline, "Data-bound")),
        ("is the headline's share", of(HEALTHY, verdict=verdict("compute", 0.873, "It is 18 %."))),
        ("names nothing so small", of(HEALTHY, verdict=verdict("host", 0.013))),
        ("the ledger has", of(HEALTHY, verdict=verdict("compute", 0.7))),
        ("the ledger has", of(SLOW, verdict=verdict("data", 0.5))),
        ("takes more", of(HEALTHY, verdict=verdict("host", 0.013))),
        (
            "nothing is named that the headline",
            of(HEALTHY, "validation", "something", verdict=verdict("evaluation", 0.074)),
        ),
        ("has the findings", of(SLOW, "--why serial_loading", "--why slow_loading")),
        ("title twice", of(SLOW, "Whole run", f"{SLOW.findings[0].title}\nWhole run")),
        ("two findings", of(SLOW, findings=[SLOW.findings[0], SLOW.findings[0]])),
        ("without having looked", of(HEALTHY, "No fix found", "Nothing")),
        ("the bar is", of(HEALTHY, "gain over 3 %", "gain over 5 %")),
        ("reported and passed over", of(SLOW, passed_over=[PassedOver(SLOW.findings[0], LITTLE)])),
        ("which is not so", of(QUIET, passed_over=[PassedOver(GC, LITTLE, 0.03)])),
        ("which is not so", of(QUIET, passed_over=[PassedOver(GC, IN_NOISE, 0.1)])),
        ("which is not so", of(QUIET, passed_over=[PassedOver(GC, SOME_RANKS)])),
        ("and not named", of(QUIET, "  backward", "  backwards")),
        ("and not 40 %", of(QUIET, " 30 %", " 40 %")),
        ("more or less than all", of(QUIET, " 30 %", " 40 %")),
        ("less than is reported", of(QUIET, findings=[replace(GC, evidence={LIKELY: 1.01})])),
        ("likely gains", of(QUIET, findings=[replace(GC, evidence={LIKELY: 1.5})])),
        ("on the page, not", of(SLOW, "4.6x faster", "9.6x faster")),
        ("saves", of(QUIET, findings=[replace(GC, recoverable_s=1e6)])),
        ("data takes more, 51 %", of(ON_GPU, verdict=summaries.accelerator().verdict)),
        ("the bars have 51 %", of(ON_GPU, verdict=verdict("data", 0.3))),
        ("by the bars", of(ON_GPU, verdict=replace(ON_GPU.verdict, headline="It idles 30 %."))),
        ("the bars have 26 %", of(ON_GPU, verdict=verdict("compute", 0.6))),
        ("one alone", of(QUIET, findings=[GC, SLOW.findings[0]], together=1.1)),
    ],
)
def test_a_planted_contradiction_is_found(expected: str, found: list[str]) -> None:
    assert any(expected in sentence for sentence in found), found
