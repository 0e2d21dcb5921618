"""Gradients that nothing uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import found, only

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def gradients(unused: float, mixed: float, **known: Any) -> dict[str, Any]:
    shares = {"unused_share": unused, "mixed_share": mixed, "from_start": True}
    return {**shares, "at": None, "model_at": None, "model": "", **known}


TEACHER = gradients(0.8, 0.0, model="ResNet", model_at="train.py:41")
CRITIC = {**TEACHER, "unused_share": 0.0, "mixed_share": 0.9}
ITS_PASS = gradients(0.5, 0.0, model="Maker", at="train.py:41")
OTHER_PASS = gradients(0.0, 0.3, model="Judge", at="train.py:47")
BACKWARD_SHARE = 1 / 3


def case_with(**settings: Any) -> RunContext:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"backward": 1.0}, torch=TorchSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "slug", "site", "advised", "saved"),
    [
        ({"unused": TEACHER}, "unused", "train.py:41", "on those parameters", (0.72, 0.88)),
        ({"unused": CRITIC}, "unused", "train.py:41", "on those parameters", (0.27, 0.495)),
        ({"unused": gradients(0.8, 0.0)}, "unused", None, "on those parameters", (0.72, 0.88)),
        (
            {"discarded": [ITS_PASS]},
            *("discarded", "train.py:41", "give this loss what Maker gives with .detach()"),
            (0.45, 0.55),
        ),
        (
            {"discarded": [ITS_PASS, OTHER_PASS]},
            *("discarded", "train.py:41", "with .detach()"),
            (0.54, 0.715),
        ),
        (
            {"discarded": [{**OTHER_PASS, "mixed_share": 0.9}]},
            *("discarded", "train.py:47", ".requires_grad_(False) on the parameters of Judge"),
            (0.27, 0.495),
        ),
        (
            {"discarded": [{**ITS_PASS, "model": "", "at": None}]},
            *("discarded", None, "the other model gives with .detach()"),
            (0.45, 0.55),
        ),
    ],
)
def test_gradients_that_nothing_uses(
    settings: dict[str, Any],
    slug: str,
    site: str | None,
    advised: str,
    saved: tuple[float, float],
) -> None:
    finding = only(case_with(**settings))
    assert (finding.id, finding.site) == (f"{slug}_gradients", site)
    assert advised in finding.advice
    least, most = (1 / (1 - share * BACKWARD_SHARE) for share in saved)
    expected = [pytest.approx(times, rel=0.03) for times in (least, most)]
    assert finding.predicted_speedup == expected


def test_further_lines_are_named() -> None:
    [also] = only(case_with(discarded=[ITS_PASS, OTHER_PASS])).also
    assert "train.py:47, of Judge" in also


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"unused": gradients(0.05, 0.02)},
        {"discarded": [gradients(0.03, 0.02)]},
    ],
)
def test_those_that_cost_little(settings: dict[str, Any]) -> None:
    assert found(case_with(**settings)) == []


@pytest.mark.parametrize("key", ["unused", "discarded"])
def test_of_a_part_of_the_run_the_most_is_said(key: str) -> None:
    later = {**ITS_PASS, "from_start": False}
    finding = only(case_with(**{key: [later] if key == "discarded" else later}))
    assert finding.is_at_most


@pytest.mark.parametrize(("recompute_s", "cautions"), [(0.2, 2), (0.0, 1)])
def test_what_is_checkpointed_is_minded(recompute_s: float, cautions: int) -> None:
    context = case_with(unused=TEACHER)
    context = replace(context, training=context.training | {"recompute": recompute_s})
    [finding] = [x for x in diagnose(context).findings if x.id == "unused_gradients"]
    assert len(finding.cautions) == cautions


@pytest.mark.parametrize("clips", [True, False])
def test_clipped_together_discarded_gradients_change_updates(clips: bool) -> None:
    finding = only(replace(case_with(discarded=[ITS_PASS]), clips_gradients=clips))
    assert bool(finding.cautions) is clips
