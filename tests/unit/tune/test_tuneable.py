"""A finding says that `tune` measures its change only where that has a trial of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of, on_device
from support.found import handed_over

from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.tune.candidates import plan


def found(case: RunContext, rule: str) -> Finding:
    return next(one for one in diagnose(case).findings if one.id == rule)


def has_trial(case: RunContext, finding: Finding) -> bool:
    """Whether one of tune's candidates changes the first of a finding's arguments, of its loader.

    Workers that are there already are kept in a trial of its own.
    """
    name = next(iter(finding.change))
    tried = [one for one in plan(case).candidates if name in one.overrides]
    of_loader = name in ("num_workers", "persistent_workers", "prefetch_factor")
    return any(finding.site in one.sites or not of_loader for one in tried)


def streaming(**facts: Any) -> RunContext:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    planted.loader = replace(planted.loader, is_iterable=True, **facts)
    return case_of(planted)


def evaluated() -> RunContext:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluation = Planted(fetch_s=0.02, compute_s=0.002, role="evaluation")
    evaluation.loader = replace(evaluation.loader, id=1, site="train.py:44")
    return case_of(training, evaluation, parts={"evaluation": 4.0})


def restarted(role: str) -> RunContext:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    plain = {"workers": 2, "fetch_s": 0.004, "passes": 10, "start_s": 0.1}
    if role == "training":
        return case_of(Planted(**plain, compute_s=0.01))
    evaluation = Planted(**plain, compute_s=0.002, role="evaluation")
    evaluation.loader = replace(evaluation.loader, id=1, site="train.py:44")
    return case_of(training, evaluation, parts={"evaluation": 2.6})


def copying(**changes: Any) -> RunContext:
    """A device waits 0.6 s for copies of batches, and the host as long."""
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    assert case.summary.devices is not None
    devices = [replace(one, copy_wait_s=0.6) for one in case.summary.devices]
    rows = [replace(row, **changes) for row in case.summary.transfers]
    return replace(case, summary=replace(case.summary, devices=devices, transfers=rows))


def looped() -> RunContext:
    case = case_of(Planted(workers=4, fetch_s=0.002), parts={"optimizer": 1.0})
    adam = LoopedOptimizer("Adam", 90, "train.py:5", spent_s=1.0)
    return replace(case, torch=TorchSettings(looped=[adam]))


BURSTS: dict[str, Any] = {"fetch_s": 0.003, "bursts": (30, 11, 13.3), "compute_s": 0.0126}


@pytest.mark.parametrize(
    ("make", "rule", "is_tried"),
    [
        (lambda: case_of(Planted(fetch_s=0.03)), "serial_loading", True),
        (lambda: streaming(shares_samples=True), "serial_loading", True),
        (lambda: case_of(Planted(workers=1, fetch_s=0.03)), "too_few_workers", True),
        (lambda: case_of(Planted(workers=2, passes=1, **BURSTS)), "slow_samples", True),
        (lambda: restarted("training"), "worker_restart", True),
        # No loader of evaluation is ever changed.
        (lambda: restarted("evaluation"), "worker_restart", False),
        (evaluated, "slow_validation", False),
        (lambda: case_of(handed_over()), "worker_restart", True),
        (copying, "blocking_copies", True),
        (lambda: copying(pinned_share=1.0), "blocking_copies", False),
        (looped, "slow_optimizer", True),
    ],
)
def test_tune_is_named_where_it_has_a_trial(
    make: Callable[[], RunContext], rule: str, is_tried: bool
) -> None:
    case = make()
    finding = found(case, rule)
    assert finding.change
    assert finding.is_tried_by_tune is is_tried
    assert ("trainprof tune" in finding.verify) is is_tried
    assert ("trainprof compare" in finding.verify) is not is_tried
    if is_tried:
        assert has_trial(case, finding)


@pytest.mark.parametrize("shares", [False, None])
def test_what_takes_more_than_arguments_is_not_tried(shares: bool | None) -> None:
    finding = found(streaming(shares_samples=shares), "serial_loading")
    assert (finding.change, finding.is_tried_by_tune) == ({}, False)
    assert "trainprof compare" in finding.verify


@pytest.mark.parametrize(("shares", "verb"), [(True, "tune"), (None, "compare")])
def test_workers_that_only_a_rerun_tells_of_are_left_to_who_tries_them(
    shares: bool | None, verb: str
) -> None:
    unsure = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, 0.012, 0.03)}
    planted = Planted(fetch_s=0.024, running=1.0, compute_s=0.02, cores=2, **unsure)
    planted.loader = replace(planted.loader, is_iterable=True, shares_samples=shares)
    case = case_of(planted)
    loop = HotLine("data_wait", "train.py:50", "train", [], 100, 0.9, 1.0)
    case = replace(case, summary=replace(case.summary, part_lines=[loop]))
    told = " ".join(found(case, "serial_loading").also)
    assert f"helps only a rerun tells: trainprof {verb}" in told


def test_findings_of_older_summaries_name_no_trial() -> None:
    assert Finding(**{**_older(), "change": {"num_workers": 4}}).is_tried_by_tune is False


def _older() -> dict[str, Any]:
    known = summaries.finding()
    names = [name for name in Finding.__slots__ if name != "is_tried_by_tune"]
    return {name: getattr(known, name) for name in names}
