"""Optimizers that could be fused, by who builds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import healthy, on_device
from support.findings import finding_of, only, reported

from trainprof.analysis.model.optimizer_builder import OptimizerCall, minded_of
from trainprof.analysis.model.torch_settings import (
    LoopedOptimizer,
    OwnOptimizer,
    TorchSettings,
    torch_settings,
)
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.finding import LIKELY, OPTIMIZER_BUILDERS, OTHER_OPTIMIZERS
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Topic
from trainprof.tune.candidates import plan

FUSED = {"fused": True}


def with_optimizers(
    *optimizers: LoopedOptimizer,
    spent_s: float = 1.0,
    own: tuple[OwnOptimizer, ...] = (),
    clips: bool = False,
    **settings: Any,
) -> RunContext:
    """A run of 3 s, of which updates take `spent_s`."""
    count = len(optimizers) + len(own)
    torch = TorchSettings(looped=[*optimizers], own=[*own], optimizers=count, **settings)
    context = healthy(parts={"optimizer": spent_s}, torch=torch)
    return replace(context, clips_gradients=clips)


def loops(
    name: str = "AdamW", tensors: int = 120, line: int = 60, spent_s: float = 1.0, **more: Any
) -> LoopedOptimizer:
    return LoopedOptimizer(name, tensors, f"train.py:{line}", spent_s=spent_s, **more)


def lion(spent_s: float = 1.0, tensors: int = 60) -> OwnOptimizer:
    return OwnOptimizer("Lion", tensors, "lion.py:9", spent_s)


BY_TRAINER = loops(built_by="transformers")
BY_BASELINES = loops("Adam", spent_s=0.5, built_by="stable_baselines3")


@pytest.mark.parametrize(
    ("context", "site", "change", "saved_s"),
    [
        pytest.param(with_optimizers(loops()), 60, FUSED, (0.4, 0.9), id="one"),
        pytest.param(
            with_optimizers(loops("Adam", 30, 60, 0.4), loops("Adam", 50, 61, 0.6)),
            *(61, FUSED, (0.4, 0.9)),
            id="two lines",
        ),
        pytest.param(
            with_optimizers(loops("AdamW", 30, 60, 0.5), loops("SGD", 30, 61, 0.5)),
            *(60, FUSED, (0.3, 0.825)),
            id="each by its class",
        ),
        pytest.param(
            with_optimizers(*[loops("Adam", 30, 6, 0.125)] * 8),
            *(6, FUSED, (0.4, 0.9)),
            id="for each task",
        ),
        pytest.param(
            with_optimizers(loops("AdamW", 40, 60, 0.4)),
            *(60, FUSED, (0.16, 0.36)),
            id="others take the rest",
        ),
        pytest.param(
            with_optimizers(loops(has_hooks=True)), 60, FUSED, (0.0, 0.9), id="hooks may take most"
        ),
        pytest.param(
            with_optimizers(loops("SGD", 4, is_plain=False)),
            *(60, FUSED, (0.2, 0.75)),
            id="SGD of few parameters with momentum",
        ),
        pytest.param(
            with_optimizers(loops("SGD", is_plain=True)), 60, FUSED, (0.0, 0.5), id="plain SGD"
        ),
        pytest.param(with_optimizers(BY_TRAINER), 60, {}, (0.4, 0.9), id="a package builds it"),
        pytest.param(
            with_optimizers(BY_BASELINES, loops("Adam", line=1, spent_s=0.5)),
            *(60, FUSED, (0.4, 0.9)),
            id="a package builds one of two",
        ),
        pytest.param(
            with_optimizers(loops(), trains_by_lightning=True, clips=True),
            *(60, {}, (0.4, 0.9)),
            id="Lightning refuses it with clipping",
        ),
        pytest.param(
            with_optimizers(loops(), trains_by_lightning=True),
            *(60, FUSED, (0.4, 0.9)),
            id="Lightning without clipping",
        ),
        pytest.param(
            with_optimizers(loops(), clips=True), 60, FUSED, (0.4, 0.9), id="clipping alone"
        ),
    ],
)
def test_slow_optimizer(
    context: RunContext, site: int, change: dict[str, Any], saved_s: tuple[float, float]
) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("slow_optimizer", f"train.py:{site}")
    assert finding.change == change
    looped = context.torch.looped
    others = {f"{x.name} {x.site}" for x in looped if x.site != finding.site}
    assert set(finding.evidence[OTHER_OPTIMIZERS] or ()) == others
    assert bool(finding.evidence[OPTIMIZER_BUILDERS]) is any(x.built_by for x in looped)
    expected = [1 / (1 - s / 3) for s in saved_s]
    assert finding.predicted_speedup == pytest.approx(expected, rel=0.05)
    assert finding.is_at_most is any(x.has_hooks for x in looped)


def test_one_that_the_script_defines() -> None:
    finding = only(with_optimizers(own=(lion(),)))
    assert (finding.id, finding.site, finding.change) == ("slow_optimizer", "lion.py:9", {})
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)


@pytest.mark.parametrize("built_by", [None, "transformers"])
def test_one_that_is_set_to_loop_on_a_device(built_by: str | None) -> None:
    context = on_device(with_optimizers(loops(is_told_to=True, built_by=built_by)), launch_s=1.0)
    finding = finding_of("slow_optimizer", context)
    assert finding is not None
    assert finding.site == "train.py:60"


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(with_optimizers(), id="fused, foreach, or no optimizer of torch's"),
        pytest.param(with_optimizers(loops("Muon")), id="what fusing gives: unknown"),
        pytest.param(with_optimizers(loops("SGD", 4, is_plain=True)), id="few of plain SGD"),
        pytest.param(with_optimizers(loops("Adam", 9, 6, 0.2), spent_s=0.2), id="a small part"),
        pytest.param(with_optimizers(loops("Adam", 9, 6, 0.2)), id="clipping takes the time"),
        pytest.param(with_optimizers(own=(lion(0.1),)), id="own: others take the time"),
        pytest.param(with_optimizers(own=(lion(tensors=4),)), id="own: few parameters"),
        pytest.param(with_optimizers(own=(lion(3.0, 12),), spent_s=3.0), id="own: large ones"),
        pytest.param(
            with_optimizers(loops("Muon", 9, 6, 0.1), own=(lion(),)), id="own: another one"
        ),
    ],
)
def test_an_optimizer_that_is_left_alone(context: RunContext) -> None:
    assert reported(context) == []


def test_what_a_policy_leaves_out_once_it_has_other_arguments_is_noted() -> None:
    assert len(minded_of([OptimizerCall("Adam", None, "stable_baselines3")])) == 1
    assert minded_of([OptimizerCall("Adam"), OptimizerCall("AdamW", None, "transformers")]) == []


@pytest.mark.parametrize(
    ("name", "built_by", "argument", "expected"),
    [
        ("Adam", None, "fused", "torch.optim.Adam(..., fused=True)"),
        ("AdamW", "transformers", "fused", 'TrainingArguments(..., optim="adamw_torch_fused")'),
        (
            "SGD",  # for which it has no such setting
            *("transformers", "fused"),
            "Trainer(..., optimizers=(torch.optim.SGD(..., fused=True), None))",
        ),
        (
            *("AdamW", "transformers", "foreach"),
            "Trainer(..., optimizers=(torch.optim.AdamW(..., foreach=True), None))",
        ),
        (
            *("Adam", "stable_baselines3", "fused"),
            "policy_kwargs=dict(optimizer_kwargs=dict(fused=True)), for Adam",
        ),
        ("Adam", "timm", "fused", "fused=True for Adam, by the settings of timm, which builds it"),
    ],
)
def test_how_an_optimizer_is_given_an_argument(
    name: str, built_by: str | None, argument: str, expected: str
) -> None:
    assert OptimizerCall(name, "train.py:2", built_by).with_argument(argument) == expected


def test_tune_knows_who_builds_what_it_recommends_to_fuse() -> None:
    unfused = (OptimizerCall("AdamW", "train.py:2", "transformers"), OptimizerCall("SGD"))
    context = with_optimizers(replace(BY_TRAINER, site="train.py:2"), unfused=unfused)
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
def test_who_builds_it_by_its_note(built: Any, expected: str | None) -> None:
    value = {"class": "Adam", "tensors": 3, "built": 1, "site": 0, "has_hooks": True}
    note = {"torch_threads": 1, "unfused": "Adam", "looped_optimizer": value, "built": built}
    texts: dict[Topic, dict[int, Any]] = {topic: {} for topic in Topic}
    texts[Topic.ENVIRONMENT] = {1: note}
    texts[Topic.SITE] = {1: ["/work/train.py", 2, "f"], 2: ["/lib/loops.py", 7, "g"]}
    metadata = Metadata(texts)
    settings = torch_settings(metadata, metadata.sites("/work"), {})
    assert [x.built_by for x in settings.looped] == [expected]
    assert [x.built_by for x in settings.unfused] == [expected]
    assert settings.looped[0].has_hooks
