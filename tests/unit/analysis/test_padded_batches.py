"""When padding is told of, and what leaving it out is said to give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.device_figures import Device
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY, Finding
from trainprof.analysis.padding import Padding, padding
from trainprof.analysis.torch_settings import TorchSettings

TOLD = Padding(12, 160.0, 36.0, 90.0, ("train.py:40",), is_left_out=False)


def padded(told: Padding | None = TOLD, **changes: Any) -> Case:
    """Most of training is forward and backward."""
    planted = Planted(workers=2, fetch_s=0.001, compute_s=0.01)
    planted.loader = replace(planted.loader, **changes)
    parts = {"forward": 0.7, "backward": 1.3}
    return case_of(planted, parts=parts, torch=TorchSettings(padding=told))


def only(case: Case) -> Finding:
    [finding] = diagnose(case).findings
    return finding


def test_padding_beyond_the_longest_of_a_batch_is_told_with_who_asks_for_it() -> None:
    case = padded()
    finding = only(case)
    assert (finding.id, finding.site) == ("padded_batches", "train.py:40")
    assert "padded to 160 positions, of which the longest of a batch fills 90" in finding.title
    assert "the average one 36" in finding.title
    computing_s = sum(case.training.get(part, 0.0) for part in ("forward", "loss", "backward"))
    spent_s = (1 - 90 / 160) * computing_s
    assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)
    assert finding.evidence[LIKELY] == pytest.approx(
        case.training_s / (case.training_s - spent_s), rel=0.02
    )
    # Attention grows with the square.
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] > 1.1 * finding.evidence[LIKELY]
    assert finding.also[0].startswith("78 % of all positions are padding")


@pytest.mark.parametrize(
    "told",
    [
        None,
        replace(TOLD, longest=158.0),  # padded to the longest of each batch
        replace(TOLD, longest=160.0, length=20.0),
        replace(TOLD, looks=3),
        replace(TOLD, is_left_out=True),
    ],
    ids=["no sequences", "hardly any", "to the longest", "few looks", "packed"],
)
def test_nothing_is_told_of_others(told: Padding | None) -> None:
    assert diagnose(padded(told)).findings == []


@pytest.mark.parametrize(
    ("sites", "changes", "site", "advice"),
    [
        ((), {"collate_site": "data.py:30"}, "data.py:30", "pad each batch to its own longest"),
        ((), {}, "train.py:41", "pad each batch to its own longest"),
        (("a.py:1", "b.py:2"), {}, None, "pad each batch to its own longest"),
        (
            ("a.py:1",),
            {"built_by": "transformers"},
            "a.py:1",
            'drop padding="max_length" where texts',
        ),
    ],
)
def test_where_it_is_to_be_changed(
    sites: tuple[str, ...], changes: dict[str, Any], site: str | None, advice: str
) -> None:
    finding = only(padded(replace(TOLD, sites=sites), **changes))
    assert finding.site == site
    assert finding.advice.startswith(advice)
    assert (finding.also[0] == "it is asked for at a.py:1 and b.py:2") is (len(sites) > 1)


def test_labels_of_tokens_are_padded_as_well() -> None:
    with_labels = replace(TOLD, has_labels=True)
    plain = only(padded(built_by="transformers")).advice
    assert "DataCollatorWithPadding(tokenizer)" in plain
    told = only(padded(with_labels, built_by="transformers")).advice
    assert told.startswith(
        'drop padding="max_length" where texts are tokenized; DataCollatorForSeq2Seq'
    )
    assert "DataCollatorForTokenClassification" in told
    assert "DataCollatorForLanguageModeling(tokenizer, mlm=False)" in told
    assert "DataCollatorWithPadding leaves labels as they are" in told
    assert only(padded(with_labels)).advice.endswith("the value that the loss ignores")
    assert "labels" not in only(padded()).advice


@pytest.mark.parametrize("is_left", [True, False])
def test_models_that_other_widths_do_not_suit_are_minded(is_left: bool) -> None:
    cautions = only(padded(replace(TOLD, is_left=is_left))).cautions
    assert any("made for one width" in told for told in cautions)
    assert any("padding stands in front" in told for told in cautions) is is_left


@pytest.mark.parametrize(("at_work", "is_told"), [(0.9, True), (0.1, False)])
def test_on_a_device_only_its_own_work_counts(at_work: float, is_told: bool) -> None:
    case = padded()
    device = Device(
        index=0,
        name="cuda:0",
        busy_share=[at_work, 0.95],
        idle_because={"host_s": 0.1},
        per_step_s={},
        queue_delay_s=None,
        memory=None,
        marks=2000,
        seconds={"forward": 10.0, "backward": 20.0},
    )
    run = replace(case.summary.run, device="cuda:0")
    case = replace(case, summary=replace(case.summary, run=run, devices=[device]))
    found = [one for one in diagnose(case).findings if one.id == "padded_batches"]
    assert bool(found) is is_told
    for finding in found:
        spent_s = (1 - 90 / 160) * at_work * case.settled_s
        assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)


class Sites:
    def known(self, number: int | None) -> str | None:
        return None if number is None else f"train.py:{number}"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {"looks": 4, "rows": 10, "places": 1600, "filled": 400, "longest": 900, "sites": [7]},
            Padding(4, 160.0, 40.0, 90.0, ("train.py:7",), is_left_out=False),
        ),
        (
            {"rows": 10, "places": 160, "filled": 40, "longest": 90, "left": 6, "has_labels": True},
            Padding(0, 16.0, 4.0, 9.0, (), is_left_out=False, is_left=True, has_labels=True),
        ),
        (
            {"rows": 10, "places": 160, "filled": 40, "longest": 90, "left": 5, "has_labels": 1},
            Padding(0, 16.0, 4.0, 9.0, (), is_left_out=False),
        ),
        ({"looks": 4, "rows": 0, "places": 1600, "filled": 400, "longest": 900}, None),
        ({"looks": 4, "rows": 10, "places": 1600, "filled": 4000, "longest": 900}, None),
        ({"looks": "many", "rows": "x"}, None),
        ("nothing", None),
        (None, None),
    ],
)
def test_what_was_told_is_not_trusted(told: Any, expected: Padding | None) -> None:
    assert padding([{"padding": told, "number": 1}], Sites()) == expected  # type: ignore[arg-type]
