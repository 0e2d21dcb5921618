"""Optimizers that a package builds: it is told by settings of its own, and nothing is patched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, on_device

from trainprof.analysis.model.optimizer_builder import OptimizerCall, minded_of
from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings, torch_settings
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.finding import OPTIMIZER_BUILDERS, Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Topic
from trainprof.tune.candidates import plan

HEALTHY = {"workers": 2, "fetch_s": 0.002, "compute_s": 0.01}


@pytest.mark.parametrize(
    ("name", "built_by", "argument", "expected"),
    [
        ("Adam", None, "fused", "torch.optim.Adam(..., fused=True)"),
        ("AdamW", "transformers", "fused", 'TrainingArguments(..., optim="adamw_torch_fused")'),
        (
            "SGD",  # for which it has no such setting
            "transformers",
            "fused",
            "Trainer(..., optimizers=(torch.optim.SGD(..., fused=True), None))",
        ),
        (
            "AdamW",
            "transformers",
            "foreach",
            "Trainer(..., optimizers=(torch.optim.AdamW(..., foreach=True), None))",
        ),
        (
            "Adam",
            "stable_baselines3",
            "fused",
            "policy_kwargs=dict(optimizer_kwargs=dict(fused=True)), for Adam",
        ),
        ("Adam", "timm", "fused", "fused=True for Adam, by the settings of timm, which builds it"),
    ],
)
def test_how_an_optimizer_is_given_an_argument(
    name: str, built_by: str | None, argument: str, expected: str
) -> None:
    assert OptimizerCall(name, "train.py:2", built_by).with_argument(argument) == expected


def test_what_a_policy_leaves_out_once_it_is_told_more_is_minded() -> None:
    [minded] = minded_of([OptimizerCall("Adam", None, "stable_baselines3")])
    assert "eps=1e-5" in minded
    assert minded_of([OptimizerCall("Adam"), OptimizerCall("AdamW", None, "transformers")]) == []


def looped(name: str = "AdamW", line: int = 2, **changes: Any) -> LoopedOptimizer:
    return LoopedOptimizer(name, 120, f"train.py:{line}", spent_s=1.0, **changes)


def case_with(*optimizers: LoopedOptimizer) -> RunContext:
    settings = TorchSettings(looped=list(optimizers), optimizers=len(optimizers))
    return case_of(Planted(**HEALTHY), parts={"optimizer": 2.0}, torch=settings)


def known(context: RunContext) -> Finding:
    [finding] = [x for x in diagnose(context).findings if x.id == "slow_optimizer"]
    return finding


def test_one_that_a_package_builds_is_not_patched_into_the_users_line() -> None:
    finding = known(case_with(looped(built_by="transformers")))
    assert finding.site == "train.py:2"
    assert finding.advice == 'TrainingArguments(..., optim="adamw_torch_fused")'
    assert finding.change == {}
    own = known(case_with(looped()))
    assert (own.advice, own.change) == ("torch.optim.AdamW(..., fused=True)", {"fused": True})
    assert own.evidence[OPTIMIZER_BUILDERS] is None


def test_of_several_each_is_advised_by_its_own_settings() -> None:
    by_package = looped("Adam", built_by="stable_baselines3")
    finding = known(case_with(by_package, looped("Adam", line=1)))
    assert "policy_kwargs=dict(optimizer_kwargs=dict(fused=True)), for Adam" in finding.advice
    assert "torch.optim.Adam(..., fused=True)" in finding.advice
    assert any("eps=1e-5" in caution for caution in finding.cautions)


@pytest.mark.parametrize("built_by", [None, "transformers"])
def test_one_that_was_told_to_loop_on_a_device(built_by: str | None) -> None:
    value = looped(is_told_to=True, built_by=built_by)
    finding = known(on_device(case_with(value), launch_s=1.0))
    call = 'TrainingArguments(..., optim="adamw_torch_fused")'
    expected = call if built_by else "torch.optim.AdamW(..., fused=True)"
    assert finding.advice.startswith(f"{expected} in place of foreach=False")


def test_where_launching_is_what_a_device_waits_for() -> None:
    calls = (OptimizerCall("SGD"), OptimizerCall("AdamW", "train.py:9", "transformers"))
    settings = TorchSettings(unfused=calls)
    context = case_of(Planted(workers=2, fetch_s=0.002), parts={"optimizer": 2.0}, torch=settings)
    [finding] = diagnose(on_device(context, launch_s=1.0)).findings
    assert finding.id == "launch_bound"
    fused = ', fused=True for SGD, TrainingArguments(..., optim="adamw_torch_fused"); larger'
    assert fused in finding.advice


def test_tune_knows_who_builds_what_it_recommends_to_fuse() -> None:
    context = case_with(looped(built_by="transformers"))
    unfused = (OptimizerCall("AdamW", "train.py:2", "transformers"), OptimizerCall("SGD"))
    context = replace(context, torch=replace(context.torch, unfused=unfused))
    assert plan(context).optimizers == (unfused[0],)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ({"site": 1, "built_by": "planted_trainer", "built_at": 2}, "planted_trainer"),
        ({"site": 1, "built_by": None, "built_at": 0}, None),
        # No line is the user's: a package's own is named, and is where arguments stand.
        ({"site": 2, "built_by": "planted_trainer", "built_at": 2}, None),
        ("damaged", None),
        (None, None),  # an older run
    ],
)
def test_what_a_recording_tells_of_it(built: Any, expected: str | None) -> None:
    value = {"class": "Adam", "tensors": 3, "built": 1, "site": 0, "has_hooks": True}
    note = {"torch_threads": 1, "unfused": "Adam", "looped_optimizer": value, "built": built}
    texts: dict[Topic, dict[int, Any]] = {topic: {} for topic in Topic}
    texts[Topic.ENVIRONMENT] = {1: note}
    texts[Topic.SITE] = {1: ["/work/train.py", 2, "f"], 2: ["/lib/loops.py", 7, "g"]}
    metadata = Metadata(texts)
    found = torch_settings(metadata, metadata.sites("/work"), {})
    assert [x.built_by for x in found.looped] == [expected]
    assert [x.built_by for x in found.unfused] == [expected]
    assert found.looped[0].has_hooks
