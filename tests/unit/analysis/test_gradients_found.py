"""Gradients that nothing uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import found, minded, only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.names import Sites
from trainprof.analysis.needless_gradients import (
    NeedlessGradients,
    discarded_gradients,
    unused_gradients,
)
from trainprof.analysis.torch_settings import TorchSettings

TEACHER = NeedlessGradients(0.8, 0.0, 62, True, "ResNet", "train.py:41")
BACKBONE = replace(TEACHER, is_all_of_model=False)
CRITIC = replace(TEACHER, unused_share=0.0, mixed_share=0.9)
NAMELESS = NeedlessGradients(0.8, 0.0, 62, True)
ITS_PASS = NeedlessGradients(0.5, 0.0, 11, True, "Maker", "train.py:30", True, "train.py:41")
OTHER_PASS = NeedlessGradients(0.0, 0.3, 6, True, "Judge", "train.py:31", True, "train.py:47")
BACKWARD_SHARE = 1 / 3


def case_with(**settings: Any) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"backward": 1.0}, torch=TorchSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "slug", "site", "advised", "saved"),
    [
        ({"unused": TEACHER}, "unused", "train.py:41", "on that model", (0.72, 0.88)),
        ({"unused": BACKBONE}, "unused", "train.py:41", "on those parameters", (0.72, 0.88)),
        ({"unused": CRITIC}, "unused", "train.py:41", "on that model", (0.27, 0.495)),
        ({"unused": NAMELESS}, "unused", None, "on those parameters", (0.72, 0.88)),
        (
            {"discarded": [ITS_PASS]},
            *("discarded", "train.py:41", "give this loss what Maker gives with .detach(); or"),
            (0.45, 0.55),
        ),
        (
            {"discarded": [ITS_PASS, OTHER_PASS]},
            *("discarded", "train.py:41", "with .detach(); or .backward(inputs="),
            (0.54, 0.715),
        ),
        (
            {"discarded": [replace(OTHER_PASS, mixed_share=0.9)]},
            *("discarded", "train.py:47", ".requires_grad_(False) on the parameters of Judge"),
            (0.27, 0.495),
        ),
        (
            {"discarded": [replace(ITS_PASS, model="", site=None)]},
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


def test_each_line_says_how_to_cut_it_off() -> None:
    finding = only(case_with(discarded=[ITS_PASS, replace(OTHER_PASS, called_from="train.py:60")]))
    [also] = finding.also
    assert "train.py:47, called from train.py:60" in also
    assert also.endswith("on the parameters of Judge for this pass, True behind it")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"unused": replace(TEACHER, unused_share=0.05, mixed_share=0.02)},
        {"discarded": [replace(ITS_PASS, unused_share=0.03, mixed_share=0.02)]},
    ],
)
def test_those_that_cost_little(settings: dict[str, Any]) -> None:
    assert found(case_with(**settings)) == []


@pytest.mark.parametrize("key", ["unused", "discarded"])
def test_of_a_part_of_the_run_the_most_is_said(key: str) -> None:
    later = replace(ITS_PASS, is_of_whole_run=False)
    finding = only(case_with(**{key: [later] if key == "discarded" else later}))
    assert finding.is_at_most


@pytest.mark.parametrize(("recompute_s", "is_said"), [(0.2, True), (0.0, False)])
def test_what_is_checkpointed_takes_other_advice(recompute_s: float, is_said: bool) -> None:
    for key, told in (("unused", TEACHER), ("discarded", [ITS_PASS])):
        case = case_with(**{key: told})
        case = replace(case, training=case.training | {"recompute": recompute_s})
        [finding] = [one for one in diagnose(case).findings if one.id == f"{key}_gradients"]
        if key == "unused":
            assert ("use_reentrant=False first" in finding.cautions[0]) is is_said
        else:
            assert ("inputs=" in finding.advice) is not is_said


def test_where_ranks_wait_for_one_another_in_backward_inputs_does_not_work() -> None:
    finding = only(case_with(discarded=[ITS_PASS], is_data_parallel=True))
    assert finding.advice == "give this loss what Maker gives with .detach()"


@pytest.mark.parametrize("clips", [True, False])
def test_clipped_together_discarded_gradients_change_updates(clips: bool) -> None:
    finding = only(replace(case_with(discarded=[ITS_PASS]), clips_gradients=clips))
    assert ("in one norm with those that are used" in minded(finding)) is clips


def test_what_was_noted_is_read_with_care() -> None:
    """Older runs note parts of models, and more models than one."""
    sites = Sites({}, "")
    model = {"class": "Net", "site": 1, "of": 6, "tensors": 4, "parts": ["body"], "more_parts": 0}
    note = {"unused_share": 0.7, "mixed_share": 0.0, "tensors": 4, "models": [model, {}, 7]}
    told = [{"unused_gradients": {**note, "from_start": True}, "number": 1}]
    read = unused_gradients(told, sites)
    assert read == NeedlessGradients(0.7, 0.0, 4, True, "Net", None, False)
    assert unused_gradients([*told, {"unused_gradients": None, "number": 2}], sites) is None
    lines = [{**note, "site": 3, "caller": "x"}, {**note, "unused_share": 0.9}, "x"]
    told = [{"discarded_gradients": lines, "from_start": True, "number": 1}]
    assert [one.unused_share for one in discarded_gradients(told, sites)] == [0.9, 0.7]
    assert discarded_gradients([{"discarded_gradients": "x", "number": 1}], sites) == []
