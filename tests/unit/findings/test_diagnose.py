"""What holds of all findings: healthy runs have none, noise hides some, the largest is first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cases import Planted, case_of, healthy
from support.findings import handed_over, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.catalogue import (
    RULES,
    UnknownThreshold,
    parsed_settings,
    rule_settings,
    threshold_names,
)
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import least_gain
from trainprof.findings.run_context import RunContext

HANDED_OVER = Interval.exactly(0.0015)
ROWS = {"fetch_s": 0.0001, "running": 1.0, "compute_s": 0.0003, "cores": 2}
NO_SOONER = Interval(0.0003, 0.0004, 0.0006)


@pytest.mark.parametrize(
    "planted",
    [
        Planted(workers=2, fetch_s=0.01, compute_s=0.03),  # workers keep up
        Planted(fetch_s=0.0004, compute_s=0.03),  # data in memory, no workers
        Planted(workers=2, fetch_s=0.004, compute_s=0.03, slow_every=40),  # a buffer hides those
        Planted(workers=2, fetch_s=0.001, compute_s=0.004, receive_s=HANDED_OVER),
        Planted(**ROWS, receive_s=NO_SOONER),  # no worker could hand them over sooner
    ],
)
def test_healthy_runs_have_no_finding(planted: Planted) -> None:
    assert reported(case_of(planted)) == []


def test_a_rule_that_fails_ends_no_other() -> None:
    context, failed = case_of(handed_over()), []

    def find(context: RunContext) -> Finding | None:
        raise ZeroDivisionError("no loader")

    broken = [replace(RULES[0], find=find), *RULES[1:]]
    diagnosis = diagnose(context, broken, failed=lambda *failure: failed.append(failure))
    assert [x.id for x in diagnosis.findings] == ["worker_restart"]
    assert [(rule, str(error)) for rule, error in failed] == [(RULES[0].id, "no loader")]
    with pytest.raises(ZeroDivisionError):
        diagnose(context, broken)


WAITING = {"fetch_s": 0.03, "compute_s": 0.01}
LITTLE = {"fetch_s": 0.0005, "compute_s": 0.01}
LOW, HIGH = ({"serial_loading.wait_share": share} for share in (0.01, 0.9))


@pytest.mark.parametrize(
    ("planted", "how", "is_reported"),
    [
        (WAITING, {"steady_steps": 5}, False),
        (WAITING, {"steady_steps": 6}, True),
        (WAITING, {"settings": HIGH}, False),
        (LITTLE, {}, False),
        (LITTLE, {"settings": LOW}, True),
    ],
)
def test_enough_steps_and_thresholds_of_the_users(
    planted: dict[str, Any], how: dict[str, Any], is_reported: bool
) -> None:
    assert reported(case_of(Planted(**planted), **how)) == ["serial_loading"] * is_reported


@pytest.mark.parametrize(
    ("parts", "how", "expected"),
    [
        ({"gc": 0.1}, {}, ["gc_pauses"]),  # a twentieth
        ({"gc": 0.1}, {"drift": 0.05}, []),
        # A machine that gets slower hides nothing that slows with it.
        ({"gc": 0.1}, {"drift": 0.2, "halves": {"gc": (0.05, 0.05)}}, ["gc_pauses"]),
        ({"gc": 0.1}, {"drift": 0.2, "halves": {"gc": (0.02, 0.08)}}, []),
        # Halves of the same length may differ in what they consist of: that alone hides nothing.
        ({"gc": 0.1}, {"halves": {"gc": (0.02, 0.08)}}, ["gc_pauses"]),
        # Nor is noise of steps any of what lies outside of them.
        ({"checkpoint": 0.1}, {"drift": 0.05}, ["slow_checkpoints"]),
    ],
)
def test_a_gain_below_the_runs_own_noise_is_not_reported(
    parts: dict[str, float], how: dict[str, Any], expected: list[str]
) -> None:
    context = healthy(parts=parts, **how)
    assert (least_gain(context.noise) > 0.05) is bool(how.get("drift"))
    assert reported(context) == expected


UNSURE = {"running": 1.0, "cores": 2, "compute_cores": Interval(1.0, 1.2, 2.0)}


@pytest.mark.parametrize(("halves", "is_sure"), [((0.2, 0.2), True), ((0.0, 0.4), False)])
def test_noise_hides_no_large_gain_of_a_cause_that_does_not_rest_on_times(
    halves: tuple[float, float], is_sure: bool
) -> None:
    uneven = healthy(parts={"gc": 0.4}, drift=0.2, halves={"gc": halves})
    [finding] = diagnose(uneven).findings
    assert finding.id == "gc_pauses"
    assert bool(finding.low_confidence) is not is_sure


def test_what_may_lose_stands_out_or_is_not_reported() -> None:
    planted = Planted(fetch_s=0.005, compute_s=0.025, **UNSURE)
    halves = {"data_wait": (0.17, 0.17)}
    [finding] = diagnose(case_of(planted, halves=halves)).findings
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] < 1
    little = Planted(fetch_s=0.002, compute_s=0.028, **UNSURE)
    assert reported(case_of(little, halves={"data_wait": (0.07, 0.07)})) == []


def test_settings_are_read_strictly_from_the_user_and_leniently_from_a_run() -> None:
    assert parsed_settings(["python_in_loop.share=0.2"]) == {"python_in_loop.share": 0.2}
    names = ("python_in_loop=0.2", "nothing.share=1", "python_in_loop.share=x")
    values = (f"python_in_loop.share={value}" for value in ("nan", "-1", "inf", "1.5"))
    for wrong in (*names, *values):
        with pytest.raises(UnknownThreshold):
            parsed_settings([wrong])
    known = {"python_in_loop.share": 0.2, "nothing.share": 1, "gc_pauses.share": "x"}
    assert rule_settings(known) == {"python_in_loop.share": 0.2}
    assert rule_settings(None) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_explains_itself(rule: Any) -> None:
    for opening in ("What it means:", "How it is measured:", "When it is wrong:", "What to do:"):
        assert f"\n\n{opening}" in rule.explanation
    assert rule.thresholds
    assert all(threshold.source for threshold in rule.thresholds.values())
    assert f"{rule.id}.{next(iter(rule.thresholds))}" in threshold_names()


def test_no_page_has_sentences_of_a_test_that_is_gone() -> None:
    here = Path(__file__).parent
    tests = "\n".join(path.read_text() for path in here.rglob("test_*.py"))
    for page in (here.parents[1] / "golden" / "findings").iterdir():
        names = re.findall(r"^== (\w+)", page.read_text(), re.MULTILINE)
        assert [name for name in names if name not in tests] == [], page


def test_findings_are_ranked_by_what_they_recover() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.01)
    findings = diagnose(case_of(planted, parts={"checkpoint": 0.4, "gc": 0.8})).findings
    assert [x.id for x in findings] == ["serial_loading", "gc_pauses", "slow_checkpoints"]
    recovered = [x.recoverable_s or 0.0 for x in findings]
    assert recovered == sorted(recovered, reverse=True)
