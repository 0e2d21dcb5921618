"""Rows that could be asked for at once, and workers that cost more than they save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.cases import Planted, case_of
from support.found import (
    WHOLE,
    found,
    handed_over,
    in_rows,
    needing_workers,
    needlessly_handed_over,
    only,
)

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY
from trainprof.analysis.pipeline_scenario import Interval

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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("takes_epoch", [True, False, None])
def test_a_sampler_that_is_told_the_epoch_is_told_by_itself_then(
    workers: int, takes_epoch: bool | None
) -> None:
    more: dict[str, Any] = {"receive_s": Interval.exactly(0.001), "delivery_s": 0.001}
    planted = in_rows(workers=workers, **(more if workers else {}))
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
    slow = {"receive_s": Interval.exactly(0.001), "delivery_s": 0.001}
    handed_over = in_rows(workers=2, start_s=0.05, **slow)
    handed_over.loader = replace(handed_over.loader, also_builds=["evaluation"])
    finding = only(case_of(handed_over))
    assert finding.id == "needless_workers"
    assert f"may give more still: {alone}DataLoader(" in finding.also[0]


def test_workers_that_fetch_rows_go_with_the_asking() -> None:
    planted = in_rows(
        workers=2,
        is_persistent=False,
        start_s=0.05,
        receive_s=Interval.exactly(0.001),
        delivery_s=0.001,
    )
    finding = only(case_of(planted))  # and not that they are started again for each pass
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    more = f"DataLoader(..., {WHOLE}){BESIDE_WHOLE}"
    assert finding.also == [f"whole batches at once may give more still: {more}"]


def test_rows_for_which_workers_are_most_of_the_wait_are_fetched_without_them() -> None:
    finding = only(case_of(needlessly_handed_over(0.004)))
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    assert finding.also[0].startswith("whole batches at once may give more still")


ASKS = {"is_iterable": True, "shares_samples": True}


SET_UP = {"set_up_as_workers_start": True}


@pytest.mark.parametrize(
    ("facts", "needs_workers"),
    [
        (ASKS, True),
        (SET_UP, True),
        ({"is_iterable": True, "shares_samples": False}, False),
        ({"set_up_as_workers_start": None}, False),
        ({"shares_samples": True}, False),  # of no stream
    ],
)
@pytest.mark.parametrize("kind", ["needless_workers", "worker_restart", "slow_first_batch"])
def test_what_needs_workers_has_to_work_without_them_first(
    kind: str, facts: dict[str, Any], needs_workers: bool
) -> None:
    planted = needing_workers(kind)
    planted.loader = replace(planted.loader, **facts)
    finding = only(case_of(planted))
    assert finding.id == kind
    assert finding.advice.startswith("have the dataset work without") is needs_workers
    assert finding.change == ({} if needs_workers else {"num_workers": 0})


def test_workers_that_are_not_advised_to_go_need_nothing_first() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, **SET_UP)
    finding = only(case_of(planted))
    assert finding.change == {"persistent_workers": True}
    assert finding.advice == "DataLoader(..., persistent_workers=True)"


def test_beside_workers_that_are_to_go_others_do_not_stay() -> None:
    needless = needlessly_handed_over(0.004)
    evaluating = Planted(
        workers=4,
        fetch_s=0.006,
        start_s=0.3,
        compute_s=0.0005,
        role="evaluation",
        cores=2,
        passes=20,
    )
    evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44")
    case = case_of(needless, evaluating)
    [restart] = [one for one in diagnose(case).findings if one.id == "worker_restart"]
    assert (restart.site, restart.change) == ("train.py:44", {"num_workers": 0})
    assert "its passes would be shorter, for a batch is made in" in restart.title
    unknown = replace(case.evaluating[0], inputs=None, measured=None)
    told = diagnose(replace(case, evaluating=[unknown])).findings
    assert {"persistent_workers": True} in [one.change for one in told]
    alone = only(case_of(Planted(workers=2, fetch_s=0.002), evaluating))
    assert (alone.id, alone.change) == ("worker_restart", {"persistent_workers": True})


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


def test_workers_that_cost_more_than_they_save_are_to_go() -> None:
    finding = only(case_of(handed_over()))
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    assert finding.advice == "DataLoader(..., num_workers=0)"
    assert "persistent_workers" in finding.cautions[0]
    assert finding.predicted_speedup is not None
    # Two and a half times by the model; more, for what sends batches beside it goes, too.
    low, high = finding.predicted_speedup
    assert 2.0 <= low <= 2.5 <= high <= 10.0


def test_workers_that_fill_the_cores_may_slow_everything_by_as_many_as_share_them() -> None:
    def most(workers: int, cores: float) -> float:
        case = case_of(handed_over(workers=workers))
        assert case.summary.system is not None
        system = replace(case.summary.system, cpu={"cores_usable": cores})
        told = only(replace(case, summary=replace(case.summary, system=system)))
        assert (told.id, told.is_at_most) == ("needless_workers", False)
        assert told.predicted_speedup is not None
        return told.predicted_speedup[1]

    assert most(6, 64.0) < most(6, 2.0)


def test_what_starting_needless_workers_takes_goes_too() -> None:
    plain = {"passes": 10, "is_persistent": False}
    quick, slow = (case_of(handed_over(**plain, start_s=s)) for s in (0.0, 0.1))
    kept, started = only(quick), only(slow)
    assert (kept.id, started.id) == ("needless_workers", "needless_workers")
    assert "starting and ending them for each of 10 passes" in started.title
    assert "starting" not in kept.title
    saved = (started.recoverable_s or 0.0) - (kept.recoverable_s or 0.0)
    assert saved == pytest.approx(10 * 0.1, rel=0.1)


def test_workers_that_are_worth_it_stay() -> None:
    # Without them a step would take 3.5 ms instead of 1.6.
    assert "needless_workers" not in found(case_of(handed_over(fetch_s=0.003)))
    # Asleep for 20 ms, two of them are too few.
    assert found(case_of(handed_over(fetch_s=0.02, running=0.0))) == ["too_few_workers"]


def test_batches_that_were_there_are_not_late() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    assert found(case_of(planted)) == ["uneven_batches"]
    were_there = 0.1 * planted.loader.wait_total_s
    planted.loader = replace(planted.loader, blocked_s=were_there)
    assert found(case_of(planted)) == []
