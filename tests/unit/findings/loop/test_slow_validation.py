"""Evaluation that takes long: its place, what of it can go, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import HEALTHY, STEPS, Planted, case_of, healthy, with_summary
from support.findings import finding_of, hot_line, only, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run import Evaluation
from trainprof.findings.run_context import RunContext


def validating(fetch_s: float = 0.0001, compute_s: float = 0.02, **how: Any) -> Planted:
    planted = Planted(fetch_s=fetch_s, compute_s=compute_s, role="evaluation", **how)
    return planted.having(id=1, site="train.py:44")


def over_its_own(evaluation_s: float = 4.0, **of_loader: Any) -> RunContext:
    return healthy(validating().having(**of_loader), parts={"evaluation": evaluation_s})


def over_what_trains(*others: Planted, evaluation_s: float, **of_loader: Any) -> RunContext:
    training = Planted(**HEALTHY).having(evaluation_s=evaluation_s, **of_loader)
    return case_of(training, *others, parts={"evaluation": 4.0})


def with_evaluation(context: RunContext, **changes: Any) -> RunContext:
    return with_summary(context, evaluation=replace(Evaluation(0, 8, 4.0, 0.0, []), **changes))


def over_three() -> RunContext:
    """None of them is most of it: all together are."""
    each = (
        validating(compute_s=0.005).having(id=number, site=f"val.py:{number}", evaluation_s=1.0)
        for number in (1, 2, 3)
    )
    return healthy(*each, parts={"evaluation": 3.1})


BY_HAND = case_of(parts={"evaluation": 4.0})


@pytest.mark.parametrize(
    ("context", "site", "passes", "saved_s"),
    [
        pytest.param(over_its_own(), "train.py:44", 10, 4.0, id="its loader"),
        pytest.param(over_its_own(called_at="train.py:70"), "train.py:70", 10, 4.0, id="its call"),
        pytest.param(
            over_its_own(built_by="transformers"), "train.py:44", 10, 4.0, id="a Trainer's"
        ),
        pytest.param(over_its_own(built_by="timm"), "train.py:44", 10, 4.0, id="timm's"),
        pytest.param(over_three(), "val.py:1", 10, 3.1, id="one of three"),
        pytest.param(
            over_what_trains(evaluation_s=2.5), "train.py:41", 10, 2.5, id="the loader that trains"
        ),
        pytest.param(
            over_what_trains(
                validating(compute_s=0.005), evaluation_s=3.0, called_at="train.py:70"
            ),
            *("train.py:70", 10, 3.0),
            id="the loader that trains, and one more",
        ),
        pytest.param(with_evaluation(BY_HAND), None, 8, 4.0, id="by hand"),
        pytest.param(
            with_evaluation(BY_HAND, passes_in_training=3), None, 3, 4.0, id="some lie outside"
        ),
    ],
)
def test_slow_validation(
    context: RunContext, site: str | None, passes: int, saved_s: float
) -> None:
    finding = only(context)
    assert (finding.id, finding.site, finding.change) == ("slow_validation", site, {})
    assert finding.evidence["evaluation_s"] == pytest.approx(context.training["evaluation"])
    assert finding.evidence["passes"] == passes
    assert finding.recoverable_s == pytest.approx(saved_s)
    assert len(finding.cautions) == 1


@pytest.mark.parametrize(
    "context",
    [over_its_own(), over_what_trains(evaluation_s=4.0), BY_HAND],
    ids=["own", "training's", "by hand"],
)
@pytest.mark.parametrize("share", [1.0, 0.4, None])
def test_a_forgotten_no_grad(context: RunContext, share: float | None) -> None:
    """Its golden page has the advice."""
    assert only(with_evaluation(context, with_gradients_share=share)).id == "slow_validation"


def test_little_evaluation_is_left_alone() -> None:
    assert reported(case_of(parts={"evaluation": 0.4})) == []


@pytest.mark.parametrize(
    ("how", "inputs", "has_workers"),
    [
        pytest.param({}, {}, True, id="one start"),
        pytest.param({"passes": 20}, {}, True, id="built for each of 20 passes"),
        # They would take longer to start than they save.
        pytest.param({"passes": 20}, {"boot_s": Interval(1.0, 2.5, 6.0)}, False, id="by spawn"),
    ],
)
def test_a_loader_that_evaluation_waits_for_gets_workers(
    how: dict[str, Any], inputs: dict[str, Any], has_workers: bool
) -> None:
    slow = validating(0.02, 0.002, **how)
    slow = slow.having(inputs=inputs, built=how.get("passes", 1))
    spent_s = slow.loader.wait_total_s + 0.002 * STEPS
    finding = only(healthy(slow, parts={"evaluation": spent_s}))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:44")
    assert ("num_workers" in finding.change) is has_workers


@pytest.mark.parametrize(
    ("over_it_s", "is_named_by_it"), [(1.0, False), (14.0, False), (16.0, True), (31.0, True)]
)
def test_samples_that_are_drawn_after_a_validation_are_not_its_loaders(
    over_it_s: float, is_named_by_it: bool
) -> None:
    loader = validating(compute_s=0.005).having(called_at="train.py:60", evaluation_s=over_it_s)
    drawing = HotLine("evaluation", "ddpm.py:8", "sample", ["train.py:61"], 90, 0.9, 28.0)
    lines = [drawing, hot_line("forward", called_from=["train.py:59"])]
    finding = only(with_summary(healthy(loader, parts={"evaluation": 31.0}), part_lines=lines))
    assert finding.id == "slow_validation"
    assert finding.site == ("train.py:60" if is_named_by_it else "train.py:61")


COMPUTING = HotLine("forward", "model.py:8", "forward", ["train.py:30", "train.py:60"], 9, 1, 1)
EVALUATING = hot_line("evaluation", called_from=["data.py:30", "train.py:41", "train.py:60"])


@pytest.mark.parametrize(
    "planted", [[], [Planted(**HEALTHY)]], ids=["no loader", "one that trains"]
)
@pytest.mark.parametrize(
    ("lines", "site"),
    [
        ([COMPUTING, EVALUATING], "train.py:41"),
        ([COMPUTING], None),
        # Without a sample of the other parts, train.py:60 may call for all of them.
        ([EVALUATING], "data.py:12"),
    ],
    ids=["both", "computing", "evaluating"],
)
def test_evaluation_without_a_loader_is_named_by_who_calls_for_it(
    planted: list[Planted], lines: list[HotLine], site: str | None
) -> None:
    context = case_of(*planted, parts={"evaluation": 4.0, "forward": 2.0})
    finding = finding_of("slow_validation", with_summary(context, part_lines=lines))
    assert finding is not None
    assert finding.site == site


def with_new_workers(evaluation_s: float) -> RunContext:
    """Workers are started for each of 20 passes of evaluation: 0.1 s and more each."""
    planted = validating(0.002, 0.002, workers=2, start_s=0.1, passes=20)
    return healthy(planted, parts={"evaluation": evaluation_s})


def test_evaluation_that_is_mostly_starting_workers_has_that_cause_alone() -> None:
    assert reported(with_new_workers(2.6)) == ["worker_restart"]
    assert set(reported(with_new_workers(5.0))) == {"worker_restart", "slow_validation"}
