"""Evaluation that takes long: its place, what of it can go, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import found, only

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run import Evaluation
from trainprof.findings.run_context import RunContext

DECODING = HotLine("making batches", "data.py:12", "decode", [], 100, 0.9, 1.0)


def over_its_own(**of_loader: Any) -> RunContext:
    """4 s of evaluation over a loader of its own."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    quick = Planted(fetch_s=0.0001, compute_s=0.02, role="evaluation")
    quick.loader = replace(quick.loader, id=1, site="train.py:44", **of_loader)
    return case_of(training, quick, parts={"evaluation": 4.0})


def over_what_trains(evaluation_s: float, **of_loader: Any) -> RunContext:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    training.loader = replace(training.loader, evaluation_s=evaluation_s, **of_loader)
    return case_of(training, parts={"evaluation": 4.0})


def with_evaluation(context: RunContext, **changes: Any) -> RunContext:
    evaluation = replace(Evaluation(0, 8, 4.0, 0.0, []), **changes)
    return replace(context, summary=replace(context.summary, evaluation=evaluation))


BY_HAND = case_of(parts={"evaluation": 4.0})


@pytest.mark.parametrize(
    ("context", "site", "passes", "saved_s"),
    [
        pytest.param(over_its_own(), "train.py:44", 10, 4.0, id="its loader"),
        pytest.param(over_its_own(called_at="train.py:70"), "train.py:70", 10, 4.0, id="its call"),
        pytest.param(over_what_trains(2.5), "train.py:41", 10, 2.5, id="the loader that trains"),
        pytest.param(with_evaluation(BY_HAND), None, 8, 4.0, id="by hand"),
        pytest.param(
            with_evaluation(BY_HAND, passes_in_training=3), None, 3, 4.0, id="some lie outside"
        ),
    ],
)
def test_evaluation_is_named_where_it_is_called(
    context: RunContext, site: str | None, passes: int, saved_s: float
) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("slow_validation", site)
    assert finding.evidence["evaluation_s"] == pytest.approx(4.0)
    assert finding.evidence["passes"] == passes
    assert finding.recoverable_s == pytest.approx(saved_s)
    assert "less often" in finding.advice
    assert len(finding.cautions) == 1


@pytest.mark.parametrize("context", [over_its_own(), over_what_trains(4.0), BY_HAND])
@pytest.mark.parametrize(("share", "is_told"), [(1.0, True), (0.4, False), (None, False)])
def test_a_forgotten_no_grad_is_told(
    context: RunContext, share: float | None, is_told: bool
) -> None:
    finding = only(with_evaluation(context, with_gradients_share=share))
    assert finding.advice.startswith("put it under torch.no_grad()") is is_told


def test_little_evaluation_is_left_alone() -> None:
    assert found(case_of(parts={"evaluation": 0.4})) == []


def test_a_loader_that_evaluation_waits_for_gets_workers() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    slow = Planted(fetch_s=0.03, compute_s=0.002, role="evaluation")
    slow.loader = replace(slow.loader, id=1, site="train.py:44")
    finding = only(case_of(training, slow, parts={"evaluation": slow.loader.evaluation_s}))
    assert (finding.site, "num_workers" in finding.change) == ("train.py:44", True)
    assert finding.cautions == [] or "patience" not in finding.cautions[0]


def test_a_trainer_that_evaluates_with_each_epoch_does_not_look_at_steps_alone() -> None:
    advice = only(over_its_own(built_by="transformers")).advice
    assert 'in TrainingArguments: eval_strategy="steps" with a larger eval_steps' in advice
    assert "TrainingArguments" not in only(over_its_own(built_by="timm")).advice
