"""Optimizers that could be fused, by who builds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import STEPS, healthy, on_device
from support.findings import Row, is_silent, reports, row

from trainprof.analysis.model.torch_settings import (
    LoopedOptimizer,
    OwnOptimizer,
    TorchSettings,
    torch_settings,
)
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.code import OptimizerUse
from trainprof.analysis.summary.finding import OPTIMIZER_BUILDERS, OTHER_OPTIMIZERS
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Topic

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


def saving(
    low_s: float, high_s: float, context: RunContext, site: str = "train.py:60", **fields: Any
) -> Row:
    ends = {"low": 1 / (1 - low_s / 3), "high": 1 / (1 - high_s / 3)}
    return row(context, site, rel=0.05, **{"change": FUSED, **ends, **fields})


def in_groups(
    *, default_s: float = 0.0, name: str = "AdamW", is_torchs: bool = True, **use: Any
) -> RunContext:
    """120 parameters in as many groups with the same settings; `default_s`: that could be fused."""
    changes = {"tensors": 120, "groups": 120, "settings": 1, "calls": STEPS, "spent_s": 1.0, **use}
    used = OptimizerUse(name, "train.py:60", is_torchs=is_torchs, **changes)
    looped = [loops(groups=changes["groups"], spent_s=default_s)] if default_s else []
    return with_optimizers(*looped, used=[used])


def lion(spent_s: float = 1.0, tensors: int = 60) -> OwnOptimizer:
    return OwnOptimizer("Lion", tensors, "lion.py:9", spent_s)


ADAM = with_optimizers(loops())
BY_TRAINER = loops(built_by="transformers")
BY_BASELINES = loops("Adam", spent_s=0.5, built_by="stable_baselines3")
TWO_LINES = with_optimizers(loops("Adam", 30, 60, 0.4), loops("Adam", 50, 61, 0.6))
TWO_CLASSES = with_optimizers(loops("AdamW", 30, 60, 0.5), loops("SGD", 30, 61, 0.5))
TWO_BUILDERS = with_optimizers(BY_BASELINES, loops("Adam", line=1, spent_s=0.5))
LIGHTNING = with_optimizers(loops(), trains_by_lightning=True, clips=True)
SET_TO_LOOP, SET_BY_TRAINER = (
    on_device(with_optimizers(loops(without_foreach=True, built_by=built_by)), launch_s=1.0)
    for built_by in (None, "transformers")
)

GROUPS_ON_DEVICE = on_device(in_groups(), launch_s=1.0)

test_slow_optimizer = reports(
    "slow_optimizer",
    {
        "one": saving(0.4, 0.9, ADAM, **{OTHER_OPTIMIZERS: None, OPTIMIZER_BUILDERS: None}),
        "two lines": saving(
            0.4, 0.9, TWO_LINES, "train.py:61", **{OTHER_OPTIMIZERS: ["Adam train.py:60"]}
        ),
        "each by its class": saving(
            0.3, 0.825, TWO_CLASSES, **{OTHER_OPTIMIZERS: ["SGD train.py:61"]}
        ),
        "others take the rest": saving(0.16, 0.36, with_optimizers(loops("AdamW", 40, 60, 0.4))),
        "hooks may take most": saving(
            0.0, 0.9, with_optimizers(loops(has_hooks=True)), is_at_most=True
        ),
        "plain SGD": saving(0.0, 0.5, with_optimizers(loops("SGD", is_plain=True))),
        "a package builds it": saving(0.4, 0.9, with_optimizers(BY_TRAINER), change={}),
        "SGD that a package builds": saving(
            0.2, 0.75, with_optimizers(replace(BY_TRAINER, name="SGD")), change={}
        ),
        "a package builds one of two": saving(0.4, 0.9, TWO_BUILDERS),
        "Lightning refuses it with clipping": saving(0.4, 0.9, LIGHTNING, change={}),
        "a group for each parameter": saving(
            0.4, 0.9, in_groups(default_s=1.0), change={}, groups=120, calls_each_step=1.0
        ),
        "that are fused": saving(0.4, 0.9, in_groups(), change={}),
        "30 settings": saving(0.3, 0.675, in_groups(settings=30), change={}),
        "an optimizer for each parameter": saving(
            0.4,
            0.9,
            in_groups(tensors=1, groups=1, calls=120 * STEPS),
            change={},
            groups=120,
            calls_each_step=120.0,
        ),
        # Each group has its own rate: fused, each takes its own time.
        "in 60 groups": saving(0.2, 0.45, in_groups(groups=60, settings=60, default_s=1.0)),
        "groups on a device": row(GROUPS_ON_DEVICE, "train.py:60", change={}, is_only=False),
        "the script's own": row(
            with_optimizers(own=(lion(),)),
            "lion.py:9",
            likely=1 / (1 - 0.9 / 3),
            change={},
            rel=0.05,
        ),
        "set to loop on a device": row(SET_TO_LOOP, "train.py:60", is_only=False),
        "set so for a package": row(SET_BY_TRAINER, "train.py:60", is_only=False),
    },
)

test_an_optimizer_that_is_left_alone = is_silent(
    "slow_optimizer",
    {
        "fused, foreach, or no optimizer of torch's": with_optimizers(),
        "what fusing gives: unknown": with_optimizers(loops("Muon")),
        "few of plain SGD": with_optimizers(loops("SGD", 4, is_plain=True)),
        "a small part": with_optimizers(loops("Adam", 9, 6, 0.2), spent_s=0.2),
        "clipping takes the time": with_optimizers(loops("Adam", 9, 6, 0.2)),
        "own: others take the time": with_optimizers(own=(lion(0.1),)),
        "own: few parameters": with_optimizers(own=(lion(tensors=4),)),
        "groups: each has its own rate": in_groups(settings=120, default_s=1.0),
        "groups: few": in_groups(tensors=40, groups=9),
        "groups: large": in_groups(groups=20),
        "groups: little time": in_groups(spent_s=0.2),
        "groups: not torch's": in_groups(is_torchs=False),
        "own: large ones": with_optimizers(own=(lion(3.0, 12),), spent_s=3.0),
    },
)


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
    assert [x.built_by for x in (*settings.looped, *settings.unfused)] == [expected] * 2
