"""Gradients that nothing uses: of parameters outside of optimizers, or thrown away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cases import healthy
from support.findings import Row, is_silent, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.findings.run_context import RunContext

RULES_HERE = ("unused_gradients", "discarded_gradients")
BACKWARD_SHARE = 1 / 3


def gradients(unused: float, mixed: float, **more: Any) -> dict[str, Any]:
    shares = {"unused_share": unused, "mixed_share": mixed, "from_start": True}
    return {**shares, "at": None, "model_at": None, "model": "", **more}


TEACHER = gradients(0.8, 0.0, model="ResNet", model_at="train.py:41")
CRITIC = {**TEACHER, "unused_share": 0.0, "mixed_share": 0.9}
ITS_PASS = gradients(0.5, 0.0, model="Maker", at="train.py:41")
OTHER_PASS = gradients(0.0, 0.3, model="Judge", at="train.py:47")
MIXED_PASS = {**OTHER_PASS, "mixed_share": 0.9}


def run_with(*, recompute_s: float = 0.0, clips: bool = False, **settings: Any) -> RunContext:
    context = healthy(parts={"backward": 1.0}, torch=TorchSettings(**settings))
    training = {**context.training, "recompute": recompute_s}
    return replace(context, training=training, clips_gradients=clips)


def saving(low: float, high: float, site: str = "train.py:41", **settings: Any) -> Row:
    """Of backward, these shares."""
    ends = {"low": 1 / (1 - low * BACKWARD_SHARE), "high": 1 / (1 - high * BACKWARD_SHARE)}
    return row(run_with(**settings), site, rel=0.03, **ends, is_at_most=False)


def of_a_part(**settings: Any) -> Row:
    return row(run_with(**settings), is_at_most=True)


test_unused_gradients = reports(
    "unused_gradients",
    {
        "a teacher": saving(0.72, 0.88, unused=TEACHER),
        "a critic": saving(0.27, 0.495, unused=CRITIC),
        "for a part of the run": of_a_part(unused={**TEACHER, "from_start": False}),
        "with checkpoints": row(run_with(unused=TEACHER, recompute_s=0.2), is_only=False),
    },
)
test_discarded_gradients = reports(
    "discarded_gradients",
    {
        "a pass": saving(0.45, 0.55, discarded=[ITS_PASS]),
        "clipped": saving(0.45, 0.55, discarded=[ITS_PASS], clips=True),
        "two passes": saving(0.54, 0.715, discarded=[ITS_PASS, OTHER_PASS]),
        "through the other model": saving(0.27, 0.495, "train.py:47", discarded=[MIXED_PASS]),
        "for a part of the run": of_a_part(discarded=[{**ITS_PASS, "from_start": False}]),
    },
)
test_little = is_silent("unused_gradients", {"a little": run_with(unused=gradients(0.05, 0.02))})
test_few = is_silent("discarded_gradients", {"few": run_with(discarded=[gradients(0.03, 0.02)])})
