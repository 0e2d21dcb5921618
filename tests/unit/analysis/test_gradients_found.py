"""Gradients that nothing uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import found, minded, only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.torch_settings import TorchSettings
from trainprof.analysis.unused_gradients import DiscardedGradients, PartOfModel, UnusedGradients


def unused(
    share: float, mixed: float = 0.0, *models: PartOfModel, of_whole_run: bool = True
) -> TorchSettings:
    told = UnusedGradients(12, share, mixed, 62, 9_000, of_whole_run, list(models))
    return TorchSettings(unused=told)


TEACHER = PartOfModel("ResNet", "train.py:41", 62, 62, [""], 0)


BACKBONE = PartOfModel("Net", "train.py:41", 64, 62, ["backbone"], 0)


SCATTERED = PartOfModel("Net", "train.py:41", 64, 40, ["a", "b", "c"], 2)


WITH_BACKWARD = {"backward": 1.0}  # a third of training


@pytest.mark.parametrize(
    ("model", "whose", "frozen"),
    [
        (TEACHER, "all 62 parameters of ResNet, called here,", "that model"),
        (BACKBONE, "backbone in Net, called here (62 of its 64 parameters),", "its backbone"),
        (SCATTERED, "a, b, c and 2 more in Net, called here (40 of its 64", "those parts of it"),
    ],
)
def test_gradients_that_no_optimizer_uses(model: PartOfModel, whose: str, frozen: str) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.8, 0.0, model, TEACHER)))
    assert (finding.id, finding.site) == ("unused_gradients", "train.py:41")
    assert whose in finding.title
    assert f".requires_grad_(False) on {frozen}, once" in (finding.advice or "")
    assert "62 of the 62 parameters of ResNet" in finding.also[0]
    # 0.8 of a third of training, 0.9 to 1.1 of which were seen to go, and some of forward.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.9 * 0.8 / 3), rel=0.05)
    assert 1 / (1 - 1.1 * 0.8 / 3) < high < 1.75


def test_gradients_beside_those_that_are_used_save_half_at_most() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.0, 0.9, TEACHER)))
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.3 * 0.9 / 3), rel=0.03)
    assert high == pytest.approx(1 / (1 - 0.55 * 0.9 / 3), rel=0.03)


@pytest.mark.parametrize(
    ("settings", "recompute_s", "is_said"),
    [
        ({"is_checkpointing": True}, 0.0, True),
        ({"recomputes_at": ("model.py:30",)}, 0.0, True),
        ({}, 0.2, True),
        ({}, 0.0, False),
    ],
)
def test_what_is_checkpointed_may_learn_nothing_where_what_goes_in_is_frozen(
    settings: dict[str, Any], recompute_s: float, is_said: bool
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    torch = replace(unused(0.8, 0.0, BACKBONE), **settings)
    case = case_of(healthy, parts=WITH_BACKWARD, torch=torch)
    case = replace(case, training=case.training | {"recompute": recompute_s})
    [finding] = [one for one in diagnose(case).findings if one.id == "unused_gradients"]
    assert ("use_reentrant=False first" in finding.cautions[0]) is is_said
    assert len(finding.cautions) == 1 + is_said


def test_unused_gradients_told_with_less_to_go_by() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    nameless = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.8)))
    assert nameless.site is None
    assert "the gradients of 62 parameters, which" in nameless.title
    later = unused(0.8, 0.0, TEACHER, of_whole_run=False)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=later))
    assert finding.is_at_most
    assert (finding.predicted_speedup or [0.0])[0] == 1


@pytest.mark.parametrize("told", [TorchSettings(), unused(0.05, 0.02, TEACHER)])
def test_unused_gradients_that_cost_little(told: TorchSettings) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts=WITH_BACKWARD, torch=told)) == []


GENERATOR = PartOfModel("Generator", "train.py:30", 11, 11, [""], 0)


DISCRIMINATOR = PartOfModel("Discriminator", "train.py:31", 6, 6, [""], 0)


TRUNK = PartOfModel("Net", "train.py:31", 9, 6, ["trunk"], 0)


MANY_PARTS = PartOfModel("Net", "train.py:31", 9, 6, ["a", "b", "c"], 2)


ITS_PASS = DiscardedGradients(
    "train.py:41", None, 8, 0.5, 0.1, False, 11, 9_000, True, [GENERATOR], [DISCRIMINATOR]
)


OTHER_PASS = DiscardedGradients(
    "train.py:47", None, 8, 0.0, 0.2, True, 6, 4_000, True, [DISCRIMINATOR], [GENERATOR]
)


def discarded(*told: DiscardedGradients, is_data_parallel: bool = False) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    settings = TorchSettings(discarded=list(told), is_data_parallel=is_data_parallel)
    return case_of(healthy, parts=WITH_BACKWARD, torch=settings)


def test_gradients_that_are_set_back_before_their_optimizer_steps() -> None:
    finding = only(discarded(ITS_PASS, OTHER_PASS))
    assert (finding.id, finding.site) == ("discarded_gradients", "train.py:41")
    which = "gradients of Generator (called at train.py:30), which are thrown away unused"
    assert f"this backward also computes {which} (zero_grad())" in finding.title
    advice = finding.advice or ""
    inputs = ".backward(inputs=[p for p in model.parameters() if p.requires_grad])"
    of = f"{inputs} with those of Discriminator (called at train.py:31) alone"
    assert advice == f"give this loss what Generator gives with .detach(); or {of}"
    [also] = finding.also
    assert "train.py:47" in also
    assert "that pass needs those of Generator (called at train.py:30) alone, so there " in also
    # Cut off there, the generator would learn nothing.
    frozen = ".requires_grad_(False) on the parameters of Discriminator for this pass"
    assert also.endswith(f"{frozen}, True behind it")
    # 0.5 of a third of training whole, 0.3 of it in part.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - (0.9 * 0.5 + 0.3 * 0.3) / 3), rel=0.03)
    assert high == pytest.approx(1 / (1 - (1.1 * 0.5 + 0.55 * 0.3) / 3), rel=0.03)


def test_passes_that_one_function_begins_are_told_apart_by_who_calls_it() -> None:
    both = (
        replace(one, site="train.py:12", called_from=line)
        for one, line in ((ITS_PASS, "train.py:41"), (OTHER_PASS, "train.py:47"))
    )
    finding = only(discarded(*both))
    assert finding.site == "train.py:12"
    assert "this backward, called from train.py:41, also computes" in finding.title
    assert "so it is at train.py:12, called from train.py:47, with" in finding.also[0]


def test_a_pass_that_goes_through_another_model() -> None:
    advice = only(discarded(replace(OTHER_PASS, mixed_share=0.6))).advice or ""
    frozen = ".requires_grad_(False) on the parameters of Discriminator for this pass"
    assert advice.startswith(f"{frozen}, True behind it; or .backward(inputs=")
    alike = only(discarded(ITS_PASS, replace(ITS_PASS, site="train.py:50"))).also[0]
    assert "so there" not in alike


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], "all that it is to train"),
        (
            [GENERATOR, TRUNK],
            "Generator (called at train.py:30) and trunk in Net (called at train.py:31)",
        ),
        ([GENERATOR, MANY_PARTS], "all that it is to train"),
    ],
)
def test_what_a_pass_is_for_is_named_whole_or_not_at_all(
    kept: list[PartOfModel], words: str
) -> None:
    """Whoever gives it less would train less."""
    advice = only(discarded(replace(ITS_PASS, kept=kept))).advice or ""
    assert advice.endswith(f" if p.requires_grad]) with those of {words} alone")


def test_where_ranks_wait_for_one_another_in_backward_inputs_does_not_work() -> None:
    advice = only(discarded(ITS_PASS, is_data_parallel=True)).advice or ""
    assert "inputs=" not in advice
    assert advice == "give this loss what Generator gives with .detach()"


@pytest.mark.parametrize(
    ("settings", "recompute_s"),
    [({"is_checkpointing": True}, 0.0), ({"recomputes_at": ("model.py:30",)}, 0.0), ({}, 0.2)],
    ids=["by torch", "by a line", "by the ledger"],
)
def test_where_forwards_are_computed_again_inputs_may_not_work(
    settings: dict[str, Any], recompute_s: float
) -> None:
    case = discarded(ITS_PASS)
    training = case.training | {"recompute": recompute_s}
    torch = replace(case.torch, **settings)
    findings = diagnose(replace(case, training=training, torch=torch)).findings
    [advice] = [one.advice or "" for one in findings if one.id == "discarded_gradients"]
    assert "inputs=" not in advice
    assert advice == "give this loss what Generator gives with .detach()"


@pytest.mark.parametrize("clips", [True, False])
def test_clipped_together_discarded_gradients_change_updates(clips: bool) -> None:
    finding = only(replace(discarded(ITS_PASS), clips_gradients=clips))
    assert finding.id == "discarded_gradients"
    assert bool(finding.cautions) is clips
    assert ("in one norm with those that are used" in minded(finding)) is clips


def test_discarded_gradients_told_with_less_to_go_by() -> None:
    nameless = replace(ITS_PASS, site=None, models=[], kept=[], is_of_whole_run=False)
    finding = only(discarded(nameless))
    assert finding.site is None
    assert finding.is_at_most
    assert "gradients of 11 parameters of another optimizer" in finding.title


@pytest.mark.parametrize("told", [[], [replace(ITS_PASS, unused_share=0.03, mixed_share=0.02)]])
def test_discarded_gradients_that_cost_little(told: list[DiscardedGradients]) -> None:
    assert found(discarded(*told)) == []
