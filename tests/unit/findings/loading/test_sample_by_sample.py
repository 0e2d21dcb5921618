"""Rows of a dataset that could be asked for at once, and when they had better not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import WHOLE, found, in_rows, only

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import LIKELY


def test_rows_that_are_asked_for_one_by_one_are_to_be_asked_for_at_once() -> None:
    finding = only(case_of(in_rows()))
    assert (finding.id, finding.site, finding.change) == ("sample_by_sample", "train.py:41", {})
    assert f"DataLoader(..., {WHOLE})" in finding.advice
    assert (finding.is_at_most, finding.cautions) == (True, [])
    assert finding.evidence["sample_s"] == pytest.approx(10e-6)
    assert finding.evidence[LIKELY] == pytest.approx(0.82 / 0.5, rel=0.05)


def test_rows_that_a_slow_sampler_draws_wait_for_that() -> None:
    wait = HotLine("data_wait", "data.py:36", "__iter__", [], 83, 0.56, 3.5, line_share=0.56)
    context = case_of(in_rows(sampler_s=0.002))
    context = replace(context, summary=replace(context.summary, part_lines=[wait]))
    finding = only(context)
    assert (finding.id, finding.site) == ("slow_sampler", "data.py:36")


@pytest.mark.parametrize(
    ("changes", "words", "cautions"),
    [
        # __getitem__ then gets a list of indices.
        ({"holds_tensors": False}, WHOLE, 1),
        # A list of samples is put into tensors first: they are in memory twice.
        ({"holds_tensors": False, "is_stackable": True}, "TensorDataset(*default_collate(", 1),
        # The sampler of training would shuffle evaluation.
        ({"also_builds": ["evaluation"]}, "for this loader alone", 0),
        ({"whole_batches": "sampler=sampler"}, "DataLoader(..., sampler=sampler)", 0),
        ({"whole_batches": "sampler=sampler", "sampler_takes_epoch": True}, "set_epoch", 1),
    ],
)
def test_what_else_has_to_change_then(changes: dict[str, Any], words: str, cautions: int) -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, **changes)
    finding = only(case_of(planted))
    assert len(finding.cautions) == cautions
    assert words in " ".join([finding.advice, *finding.cautions, *finding.also])


@pytest.mark.parametrize(
    ("planted", "changes"),
    [
        ({"fetch_s": 0.003}, {}),  # samples of 0.1 ms are work
        ({"compute_s": 0.005}, {}),  # 6 % of a step
        ({}, {"whole_batches": None}),  # it takes lists already
    ],
)
def test_what_is_asked_for_as_it_is(planted: dict[str, float], changes: dict[str, Any]) -> None:
    rows = in_rows(**planted)
    rows.loader = replace(rows.loader, **changes)
    assert "sample_by_sample" not in found(case_of(rows))


def test_batches_that_were_there_are_not_late() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    assert found(case_of(planted)) == ["slow_samples"]
    planted.loader = replace(planted.loader, blocked_s=0.1 * planted.loader.wait_total_s)
    assert found(case_of(planted)) == []
