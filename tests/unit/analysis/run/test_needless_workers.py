"""Rows that could be asked for at once, and workers that cost more than they save."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.cases import Planted, case_of
from support.found import (
    WHOLE,
    found,
    in_rows,
    only,
)

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import LIKELY

BESIDE_WHOLE = ", without shuffle (from torch.utils.data import BatchSampler, RandomSampler)"


def test_rows_that_are_asked_for_one_by_one_are_to_be_asked_for_at_once() -> None:
    finding = only(case_of(in_rows()))
    assert (finding.id, finding.site, finding.change) == ("sample_by_sample", "train.py:41", {})
    assert finding.advice == f"DataLoader(..., {WHOLE}){BESIDE_WHOLE}"
    assert (finding.is_at_most, finding.cautions) == (True, [])
    assert finding.evidence["sample_s"] == pytest.approx(10e-6)
    assert finding.evidence[LIKELY] == pytest.approx(0.82 / 0.5, rel=0.05)


def test_rows_that_a_slow_sampler_draws_wait_for_that() -> None:
    planted = in_rows(sampler_s=0.002)
    wait = HotLine("data_wait", "data.py:36", "__iter__", [], 83, 0.56, 3.5, line_share=0.56)
    case = case_of(planted)
    finding = only(replace(case, summary=replace(case.summary, part_lines=[wait])))
    assert (finding.id, finding.site) == ("slow_sampler", "data.py:36")


def test_a_dataset_of_the_users_own_has_to_take_a_list_then() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, holds_tensors=False)
    [caution] = only(case_of(planted)).cautions
    assert caution.startswith("__getitem__ then gets a list of indices")


@pytest.mark.parametrize("takes_epoch", [True, False, None])
def test_a_sampler_that_is_told_the_epoch_is_told_by_itself_then(
    takes_epoch: bool | None,
) -> None:
    planted = in_rows()
    asked = WHOLE.replace("RandomSampler(dataset)", "sampler")
    planted.loader = replace(planted.loader, whole_batches=asked, sampler_takes_epoch=takes_epoch)
    finding = only(case_of(planted))
    told = " ".join([finding.advice, *finding.cautions, *finding.also])
    assert f"DataLoader(..., {asked}), with the sampler that it has now (from" in told
    assert ("keep the sampler itself in a variable, and call set_epoch" in told) is bool(
        takes_epoch
    )
    assert not hasattr(torch.utils.data.BatchSampler, "set_epoch")


def test_a_list_of_samples_is_put_into_tensors_first() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, holds_tensors=False, is_stackable=True)
    finding = only(case_of(planted))
    assert finding.advice.startswith(
        "dataset = TensorDataset(*default_collate(list(dataset))), once, then DataLoader(..., "
    )
    [caution] = finding.cautions  # it has no __getitem__ to be written anew
    assert caution.startswith("the samples are in memory twice then")


def test_whole_batches_are_for_one_of_the_loaders_of_a_line() -> None:
    """The sampler of training would shuffle evaluation."""
    planted = in_rows()
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, also_builds=["evaluation"])
    finding = only(case_of(planted))
    alone = "for this loader alone, as its line builds the loader of evaluation too: "
    assert finding.advice == f"{alone}{plain.advice}"


@pytest.mark.parametrize(
    "changes",
    [
        {"fetch_s": 0.003},  # samples of 0.1 ms are work
        {"compute_s": 0.005},  # 6 % of a step
    ],
)
def test_samples_that_are_work_and_short_waits_are_asked_for_as_they_are(
    changes: dict[str, float],
) -> None:
    assert "sample_by_sample" not in found(case_of(in_rows(**changes)))


def test_a_dataset_that_takes_lists_already_is_not_told_to() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, whole_batches=None)
    assert "sample_by_sample" not in found(case_of(planted))


def test_batches_that_were_there_are_not_late() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    assert found(case_of(planted)) == ["slow_samples"]
    were_there = 0.1 * planted.loader.wait_total_s
    planted.loader = replace(planted.loader, blocked_s=were_there)
    assert found(case_of(planted)) == []
