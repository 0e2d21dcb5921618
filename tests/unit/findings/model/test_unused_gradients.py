"""Gradients that nothing uses: of parameters outside of optimizers, or thrown away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import healthy
from support.findings import finding_of, only, reported

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


def run_with(*, recompute_s: float = 0.0, clips: bool = False, **settings: Any) -> RunContext:
    context = healthy(parts={"backward": 1.0}, torch=TorchSettings(**settings))
    training = {**context.training, "recompute": recompute_s}
    return replace(context, training=training, clips_gradients=clips)


@pytest.mark.parametrize(
    ("settings", "site", "saved", "cautions"),
    [
        pytest.param({"unused": TEACHER}, "train.py:41", (0.72, 0.88), 1, id="a teacher"),
        pytest.param({"unused": CRITIC}, "train.py:41", (0.27, 0.495), 1, id="a critic"),
        pytest.param({"unused": gradients(0.8, 0.0)}, None, (0.72, 0.88), 1, id="nameless"),
        pytest.param({"discarded": [ITS_PASS]}, "train.py:41", (0.45, 0.55), 0, id="a pass"),
        pytest.param(
            {"discarded": [ITS_PASS], "clips": True}, "train.py:41", (0.45, 0.55), 1, id="clipped"
        ),
        pytest.param(
            {"discarded": [ITS_PASS, OTHER_PASS]}, "train.py:41", (0.54, 0.715), 0, id="two passes"
        ),
        pytest.param(
            {"discarded": [{**OTHER_PASS, "mixed_share": 0.9}]},
            *("train.py:47", (0.27, 0.495), 0),
            id="a pass that the other model goes through",
        ),
        pytest.param(
            {"discarded": [{**ITS_PASS, "model": "", "at": None}]},
            *(None, (0.45, 0.55), 0),
            id="a nameless pass",
        ),
    ],
)
def test_gradients_that_nothing_uses(
    settings: dict[str, Any], site: str | None, saved: tuple[float, float], cautions: int
) -> None:
    finding = only(run_with(**settings))
    rule = "unused_gradients" if "unused" in settings else "discarded_gradients"
    assert (finding.id, finding.site, len(finding.cautions)) == (rule, site, cautions)
    expected = [1 / (1 - share * BACKWARD_SHARE) for share in saved]
    assert finding.predicted_speedup == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    "settings",
    [{}, {"unused": gradients(0.05, 0.02)}, {"discarded": [gradients(0.03, 0.02)]}],
)
def test_those_that_cost_little(settings: dict[str, Any]) -> None:
    assert reported(run_with(**settings)) == []


@pytest.mark.parametrize("key", ["unused", "discarded"])
def test_of_a_part_of_the_run_the_most_is_said(key: str) -> None:
    later = {**ITS_PASS, "from_start": False}
    assert only(run_with(**{key: [later] if key == "discarded" else later})).is_at_most


def test_checkpointed_activations_need_more() -> None:
    finding = finding_of("unused_gradients", run_with(unused=TEACHER, recompute_s=0.2))
    assert finding is not None
    assert len(finding.cautions) == 2
