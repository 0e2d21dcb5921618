"""What holds of all findings: healthy runs have none, and the one that recovers most is first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.found import found, handed_over

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.catalogue import (
    RULES,
    UnknownThreshold,
    parsed_settings,
    rule_settings,
    threshold_names,
)
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import least_gain
from trainprof.findings.run_context import RunContext


def test_a_rule_that_fails_ends_no_other() -> None:
    context, failed = case_of(handed_over()), []

    def find(context: RunContext) -> Finding | None:
        raise ZeroDivisionError("no loader")

    broken = [replace(RULES[0], find=find), *RULES[1:]]
    findings = diagnose(
        context, broken, failed=lambda rule, error: failed.append((rule, str(error)))
    ).findings
    assert [x.id for x in findings] == ["worker_restart"]
    assert failed == [(RULES[0].id, "no loader")]
    with pytest.raises(ZeroDivisionError):
        diagnose(context, broken)


def test_few_steady_steps_find_nothing() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    assert found(case_of(planted, steady_steps=19)) == []
    assert found(case_of(planted, steady_steps=20)) == ["serial_loading"]


def test_a_gain_below_the_runs_own_noise_is_not_told() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    parts = {"gc": 0.1}  # a twentieth
    assert found(case_of(healthy, parts=parts)) == ["gc_pauses"]
    uneven = case_of(healthy, parts=parts, drift=0.05)
    assert least_gain(uneven.noise) > 0.05
    assert found(uneven) == []


def test_a_machine_that_gets_slower_hides_nothing_that_slows_with_it() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    parts = {"gc": 0.1}  # a twentieth
    alike = case_of(healthy, parts=parts, drift=0.2, halves={"gc": (0.05, 0.05)})
    assert alike.noise > 0.1
    assert found(alike) == ["gc_pauses"]
    now_and_then = case_of(healthy, parts=parts, drift=0.2, halves={"gc": (0.02, 0.08)})
    assert found(now_and_then) == []
    # Halves of the same length may differ in what they consist of: that alone hides nothing.
    even = case_of(healthy, parts=parts, halves={"gc": (0.02, 0.08)})
    assert found(even) == ["gc_pauses"]


def test_what_may_lose_stands_out_from_all_noise_or_is_not_told() -> None:
    unsure = {"compute_cores": Interval(1.0, 1.2, 2.0)}
    planted = Planted(fetch_s=0.005, running=1.0, compute_s=0.025, cores=2, **unsure)
    halves = {"data_wait": (0.17, 0.17)}
    [finding] = diagnose(case_of(planted, halves=halves)).findings
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] < 1
    assert found(case_of(planted, halves=halves, drift=0.2)) == []
    little = Planted(fetch_s=0.002, running=1.0, compute_s=0.028, cores=2, **unsure)
    assert found(case_of(little, halves={"data_wait": (0.07, 0.07)})) == []


def test_the_noise_of_steps_hides_nothing_that_lies_outside_of_them() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    uneven = case_of(healthy, parts={"checkpoint": 0.1}, drift=0.05)
    assert found(uneven) == ["slow_checkpoints"]


def test_a_run_of_which_training_is_little_is_judged_by_its_training() -> None:
    """A short one, to see how it goes, whose imports take longer than its steps."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    context = case_of(healthy, parts={"checkpoint": 0.15})
    run = replace(context.summary.run, wall_s=20 * context.training_s)
    assert found(replace(context, summary=replace(context.summary, run=run))) == [
        "slow_checkpoints"
    ]


def test_thresholds_can_be_set_both_ways() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    assert found(case_of(planted, settings={"serial_loading.wait_share": 0.9})) == []
    little = Planted(fetch_s=0.0005, compute_s=0.01)
    assert found(case_of(little)) == []
    lower = {"serial_loading.wait_share": 0.01}
    assert found(case_of(little, settings=lower)) == ["serial_loading"]


def test_settings_are_read_strictly_from_the_user_and_leniently_from_a_run() -> None:
    assert parsed_settings(["python_in_loop.share=0.2"]) == {"python_in_loop.share": 0.2}
    for wrong in ("python_in_loop=0.2", "nothing.share=1", "python_in_loop.share=x"):
        with pytest.raises(UnknownThreshold):
            parsed_settings([wrong])
    for wrong_value in ("nan", "-1", "inf", "1.5"):
        with pytest.raises(UnknownThreshold):
            parsed_settings([f"python_in_loop.share={wrong_value}"])
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


def test_findings_are_ranked_by_what_they_recover() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.01)
    context = case_of(planted, parts={"checkpoint": 0.4, "gc": 0.8})
    findings = diagnose(context).findings
    assert [x.id for x in findings] == ["serial_loading", "gc_pauses", "slow_checkpoints"]
    recovered = [x.recoverable_s or 0.0 for x in findings]
    assert recovered == sorted(recovered, reverse=True)


def test_a_loader_that_the_model_does_not_know_is_not_judged() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    context = case_of(planted)
    unknown = replace(context, feeding=[replace(context.feeding[0], inputs=None, cause=None)])
    assert found(unknown) == []
    assert summaries.healthy().findings == []


def test_all_together_is_played_again_and_is_no_sum() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.01)
    context = case_of(planted, parts={"checkpoint": 1.0})
    findings = diagnose(context).findings
    assert [x.id for x in findings] == ["serial_loading", "slow_checkpoints"]
    # Two workers give a batch each 10 ms, as training takes them: 2 of 7 seconds remain.
    assert together(context, findings) == pytest.approx(7 / 2, rel=0.15)
    assert together(context, findings[:1]) is None
    # Also where each of them has a lower bound of its own.
    both = [findings[0], replace(findings[1], is_at_most=False)]
    assert together(context, both) == pytest.approx(7 / 2, rel=0.15)


def test_one_line_may_build_the_loaders_of_training_and_evaluation() -> None:
    training = Planted(fetch_s=0.02, compute_s=0.01)
    evaluation = Planted(fetch_s=0.02, compute_s=0.002, role="evaluation")
    evaluation.loader = replace(evaluation.loader, id=1)
    context = case_of(training, evaluation, parts={"evaluation": 4.0})
    findings = diagnose(context).findings
    assert {x.id for x in findings} == {"serial_loading", "slow_validation"}
    everything = together(context, findings)
    assert everything is not None
    assert everything > max(x.predicted_speedup[0] for x in findings if x.predicted_speedup)
    saved_s = sum(x.recoverable_s or 0.0 for x in findings)
    assert everything == pytest.approx(context.training_s / (context.training_s - saved_s), rel=0.2)


def test_steps_that_get_faster_leave_checkpoints_as_they_are() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.001)
    context = case_of(planted, parts={"checkpoint": 4.0})
    loading, saving = diagnose(context).findings
    assert (loading.of_steps, saving.of_steps) == (True, False)
    loading = replace(loading, is_at_most=True, predicted_speedup=[1.0, 20.0])
    saving = replace(saving, recoverable_s=0.0, predicted_speedup=[1.0, 1.0])
    everything = together(context, [loading, saving])
    assert everything is not None
    assert everything <= context.training_s / 4.0


@pytest.mark.parametrize(
    ("evaluated_s", "told"),
    [
        (0.0, "waits 30.0 ms of 40.0 ms a batch for it, 75 % of training"),
        (4.0, "waits 30.0 ms of 40.0 ms a batch (75 %) for it, 50 % of training"),
    ],
)
def test_a_batch_has_its_own_percentage_where_it_is_not_that_of_training(
    evaluated_s: float, told: str
) -> None:
    context = case_of(Planted(fetch_s=0.03, compute_s=0.01), parts={"evaluation": evaluated_s})
    [finding] = [x for x in diagnose(context).findings if x.id == "serial_loading"]
    assert finding.title.endswith(told)
