"""Evaluation that takes long: its place, what of it can go, and what changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import HEALTHY, STEPS, Planted, case_of, healthy, with_summary
from support.findings import hot_line, is_silent, only, reported, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run import Evaluation
from trainprof.findings.run_context import RunContext


def validating(fetch_s: float = 0.0001, compute_s: float = 0.02, **how: Any) -> Planted:
    planted = Planted(fetch_s=fetch_s, compute_s=compute_s, role="evaluation", **how)
    return planted.having(id=1, site="train.py:44")


def its_own(lines: tuple[HotLine, ...] = (), of_all_s: float = 4.0, **loader: Any) -> RunContext:
    context = healthy(validating().having(**loader), parts={"evaluation": of_all_s})
    return with_summary(context, part_lines=[*lines])


def over_what_trains(evaluation_s: float) -> RunContext:
    training = Planted(**HEALTHY).having(evaluation_s=evaluation_s)
    return case_of(training, parts={"evaluation": 4.0})


def with_gradients(context: RunContext, share: float | None) -> RunContext:
    evaluation = replace(Evaluation(0, 8, 4.0, 0.0, []), with_gradients_share=share)
    return with_summary(context, evaluation=evaluation)


def over_three() -> RunContext:
    """None of them is most of it: all together are."""
    each = (
        validating(compute_s=0.005).having(id=number, site=f"val.py:{number}", evaluation_s=1.0)
        for number in (1, 2, 3)
    )
    return healthy(*each, parts={"evaluation": 3.1})


def by_hand(*lines: HotLine, **parts: float) -> RunContext:
    return with_summary(case_of(parts={"evaluation": 4.0, **parts}), part_lines=[*lines])


COMPUTING = HotLine("forward", "model.py:8", "forward", ["train.py:30", "train.py:60"], 9, 1, 1)
EVALUATING = hot_line("evaluation", called_from=["data.py:30", "train.py:41", "train.py:60"])
# Samples that are drawn after a validation are not its loader's.
DRAWING = HotLine("evaluation", "ddpm.py:8", "sample", ["train.py:61"], 90, 0.9, 28.0)
DRAWN = {"lines": (DRAWING, hot_line("forward", called_from=["train.py:59"])), "of_all_s": 31.0}
CALLED = {"called_at": "train.py:60"}
ALL = {"saved_s": 4.0, "evaluation_s": 4.0, "change": {}}

test_slow_validation = reports(
    "slow_validation",
    {
        "its loader": row(its_own(), "train.py:44", passes=10, **ALL),
        "its call": row(its_own(**CALLED), "train.py:60", passes=10, **ALL),
        "a Trainer's": row(its_own(built_by="transformers"), "train.py:44", **ALL),
        "one of three": row(over_three(), "val.py:1", saved_s=3.1),
        "the loader that trains": row(over_what_trains(2.5), "train.py:41", saved_s=2.5),
        "by hand": row(with_gradients(by_hand(), None), None, passes=8, **ALL),
        "by hand, with its line": row(by_hand(COMPUTING, EVALUATING, forward=2.0), "train.py:41"),
        # Without a sample of the other parts, train.py:60 may call for all of them.
        "by hand, one line": row(by_hand(EVALUATING, forward=2.0), "data.py:12"),
        "mostly its loader": row(its_own(**DRAWN, **CALLED, evaluation_s=16.0), "train.py:60"),
        "samples are drawn": row(its_own(**DRAWN, **CALLED, evaluation_s=14.0), "train.py:61"),
        "with gradients": row(with_gradients(its_own(), 1.0), "train.py:44", **ALL),
        "training's, with gradients": row(with_gradients(over_what_trains(4.0), 1.0)),
        "by hand, with gradients": row(with_gradients(by_hand(), 1.0), None, **ALL),
        "some with gradients": row(with_gradients(its_own(), 0.4), "train.py:44", **ALL),
    },
)
test_little = is_silent("slow_validation", {"little": case_of(parts={"evaluation": 0.4})})


@pytest.mark.parametrize(
    ("how", "inputs", "has_workers"),
    [
        pytest.param({}, {}, True, id="one start"),
        pytest.param({"passes": 20}, {}, True, id="built for each of 20 epochs"),
        # They would take longer to start than they save.
        pytest.param({"passes": 20}, {"boot_s": Interval(1.0, 2.5, 6.0)}, False, id="by spawn"),
    ],
)
def test_a_loader_that_evaluation_waits_for_gets_workers(
    how: dict[str, Any], inputs: dict[str, Any], has_workers: bool
) -> None:
    slow = validating(0.02, 0.002, **how).having(inputs=inputs, built=how.get("passes", 1))
    finding = only(healthy(slow, parts={"evaluation": slow.loader.wait_total_s + 0.002 * STEPS}))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:44")
    assert ("num_workers" in finding.change) is has_workers


def test_evaluation_that_is_mostly_starting_workers_has_that_cause_alone() -> None:
    """0.1 s and more for each of 20 epochs."""
    planted = validating(0.002, 0.002, workers=2, start_s=0.1, passes=20)
    assert reported(healthy(planted, parts={"evaluation": 2.6})) == ["worker_restart"]
