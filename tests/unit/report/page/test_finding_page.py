"""The page of `report --why`: each figure of a finding's evidence in its own unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.finding import LIKELY, OPTIMIZER_BUILDERS, Finding
from trainprof.findings.catalogue import rule_named
from trainprof.report.page.finding_page import render_why


def why(finding: Finding) -> str:
    rule = rule_named(finding.id)
    assert rule is not None
    summary = replace(summaries.slow_loader(), findings=[finding])
    return render_why(summary, rule, width=200, color=False)


def measured(**evidence: Any) -> str:
    [line] = [x for x in why(summaries.finding(evidence=evidence)).splitlines() if "Measured" in x]
    return line.removeprefix("Measured").strip()


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        ({"batches_by_worker": {"0": 812, "1": 10}}, "batches by worker 0: 812, 1: 10"),
        ({"by_part_s": {"a.py:3": 1.5, "b.py:4": 0.2}}, "by part a.py:3 1.50 s, b.py:4 200 ms"),
        (
            {"late_in_share_of_steps": {"rank 0": 0.9, "rank 1": None}},
            "late in share of steps rank 0 90 %, rank 1 not measured",
        ),
        (
            {OPTIMIZER_BUILDERS: {"train.py:12": "transformers"}},
            "optimizers built by transformers (train.py:12)",
        ),
        ({"slow_indices": [7, 12345]}, "slow indices 7, 12345"),
        ({"built_by": "lightning"}, "built by lightning"),
    ],
)
def test_several_figures_of_a_name_are_in_its_unit(evidence: dict[str, Any], told: str) -> None:
    assert measured(**evidence) == told


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("bytes", 19_660_800_000, "bytes 18.3 GiB"),
        ("batch_bytes", 2048, "batch 2.00 KiB"),
        ("numbers_of_tables", 5_120_000, "numbers of tables 5,120,000"),
        ("length", 1_234_567.8, "length 1,234,568"),
        ("times", 2.5, "times 2.5"),
        ("free_cores", 6.25, "free cores 6.25"),
        ("threads", 4.0, "threads 4"),
        ("share", 0.25, "share 25 %"),
        ("unused_share_of_backward", 0.4, "unused share of backward 40 %"),
        ("operators_s_a_step", 0.0034, "operators a step 3.40 ms"),
        ("left_out_as_our_own_s", 0.2, "left out as our own 200 ms"),
        ("times", float("nan"), "times not measured"),
    ],
)
def test_a_figure_is_in_the_unit_of_its_name(name: str, value: float, told: str) -> None:
    assert measured(**{name: value}) == told


def test_what_is_not_known_or_told_elsewhere_is_left_out() -> None:
    nothing = {"batch_bytes": None, "slow_indices": [], "by_part_s": {}, LIKELY: 4.6}
    assert measured(workers=2, **nothing) == "workers 2"


def test_a_threshold_is_in_the_unit_of_its_name() -> None:
    tables = summaries.finding(
        id="dense_embeddings", thresholds={"looked_up_share": 0.1, "share": 0.05}
    )
    assert "looked up share up to 10 %, share from 5 % on" in why(tables)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("discarded_gradients", "backward"),
        ("padded_batches", "forward and backward"),
        ("double_precision", "computing"),
        ("gc_pauses", "garbage collection"),
        ("python_in_loop", "Python between its parts"),
        ("slow_rank", "this"),
    ],
)
def test_a_step_that_shows_it_says_what_took_it(name: str, part: str) -> None:
    found = summaries.finding(id=name, steps=[{"step": 17, "seconds": 0.44, "part_s": 0.368}])
    assert f"step 18 took 440 ms, 368 ms of it {part}\n" in why(found)


def test_a_finding_without_a_line_says_nothing_of_one() -> None:
    assert why(summaries.finding(id="gc_pauses", site=None)).startswith("gc_pauses: the training")


def test_a_gain_that_says_what_is_likely_says_it_once() -> None:
    assert "(a model, not measured: trainprof tune does), most likely 4.60 x" in why(
        summaries.finding()
    )
    at_most = summaries.finding(is_at_most=True, change={}, predicted_speedup=[1.0, 5.2])
    assert "likely" not in why(at_most)
