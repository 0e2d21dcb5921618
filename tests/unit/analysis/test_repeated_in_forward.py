"""When it is told that a forward computes the same again, and what that is said to cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, on_device
from support.found import only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY
from trainprof.analysis.names import Sites
from trainprof.analysis.repeated_calls import RepeatedCalls, RepeatedLine, repeated_calls
from trainprof.analysis.torch_settings import TorchSettings

LINE = RepeatedLine("model.py:26", 11, 0.00048, 0.0)
TOLD = RepeatedCalls(
    7, [LINE, RepeatedLine("model.py:31", 11, 0.00016, 0.0), RepeatedLine("a.py:3", 1, 1e-6, 0.0)]
)
# As of forward, but for noise: it takes 1.6 ms a step.
MOST_S = 0.0019
SITES = {1: ["/x/model.py", 26, "forward"], 2: ["/x/model.py", 31, "forward"]}


def computing(told: RepeatedCalls | None = TOLD) -> Case:
    healthy = Planted(workers=2, fetch_s=0.001, compute_s=0.01)
    return case_of(healthy, torch=TorchSettings(repeated_calls=told))


def test_it_is_told_by_the_line_of_the_most_time_with_the_others() -> None:
    case = computing()
    [finding] = diagnose(case).findings
    spent_s = 0.000641 * case.summary.training.steps
    assert (finding.id, finding.site) == ("repeated_in_forward", "model.py:26")
    assert "about 801 ms with those below, 40 % of training" in finding.title
    assert finding.also == ["so it is at model.py:31, 25 % of it"]
    assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)
    likely = case.training_s / (case.training_s - spent_s)
    assert finding.evidence[LIKELY] == pytest.approx(likely, rel=0.02)
    assert finding.evidence["calls_a_step"] == 23
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert 1.3 < low < likely < high < 2.2
    assert finding.cautions == []


def test_backward_counts_in_proportion_where_it_is_learnt() -> None:
    told = RepeatedCalls(7, [replace(LINE, learns_s=0.00024)])
    healthy = Planted(workers=2, fetch_s=0.001, compute_s=0.01)
    case = case_of(
        healthy, parts={"backward": 1.0, "forward": 1.0}, torch=TorchSettings(repeated_calls=told)
    )
    [finding] = diagnose(case).findings
    forward_s = 0.00048 * case.summary.training.steps
    backward_s = 0.00024 / 0.00048 * forward_s / case.training["forward"]
    backward_s *= case.training["backward"]
    assert finding.evidence["backward_s"] == pytest.approx(backward_s)
    assert "of backward" in finding.title
    assert finding.recoverable_s == pytest.approx(forward_s + 0.8 * backward_s, rel=0.01)
    assert "rounding" in finding.cautions[0]


def test_what_a_library_or_a_parametrization_computes_is_told_as_its_own() -> None:
    [finding] = diagnose(computing(RepeatedCalls(7, [replace(LINE, package="graphs")]))).findings
    assert finding.title.startswith("graphs, which the model calls here, computes again")
    [finding] = diagnose(
        computing(RepeatedCalls(7, [replace(LINE, inside="parametrization")]))
    ).findings
    assert "parametrize.cached()" in finding.advice


def test_no_more_is_told_than_forward_and_backward_take() -> None:
    case = computing(RepeatedCalls(7, [replace(LINE, step_s=MOST_S, learns_s=MOST_S)]))
    [finding] = diagnose(case).findings
    most_s = case.training["forward"] + case.training["backward"]
    assert finding.recoverable_s is not None
    assert finding.recoverable_s <= most_s


def test_steps_that_took_longer_than_others_tell_nothing() -> None:
    assert diagnose(computing(RepeatedCalls(7, [replace(LINE, step_s=0.0021)]))).findings == []


@pytest.mark.parametrize("steps", [None, 100, 625])
def test_it_is_said_where_later_steps_were_not_looked_at(steps: int | None) -> None:
    finding = only(computing(replace(TOLD, steps=steps)))
    assert finding.cautions == (
        ["it was seen in the first 100 of 1,250 steps: later ones may differ"]
        if steps == 100
        else []
    )


@pytest.mark.parametrize("told", [None, RepeatedCalls(7, [replace(LINE, step_s=0.00007)])])
def test_what_costs_little_is_not_told(told: RepeatedCalls | None) -> None:
    assert diagnose(computing(told)).findings == []


def test_nothing_is_told_on_a_device() -> None:
    told = diagnose(on_device(computing(), host_s=1.4)).findings
    assert "repeated_in_forward" not in [one.id for one in told]


def test_it_is_read_from_what_was_told_last() -> None:
    good = {"site": 1, "calls": 3, "step_ns": 3_000_000, "learns_ns": 9_000_000}
    lines: list[Any] = [
        {**good, "site": 2, "step_ns": 9_000_000, "package": "graphs", "inside": "parametrization"},
        good,
        {**good, "site": 9},
        {**good, "step_ns": 0},
        {**good, "calls": 0},
        {**good, "step_ns": "x"},
        "x",
    ]
    note = {"repeated_calls": {"looks": 4, "steps": 28, "lines": lines}, "number": 1}
    told = repeated_calls([note], Sites(SITES, "/x"))
    assert told is not None
    assert (told.looks, told.steps) == (4, 28)
    assert told.lines == [
        RepeatedLine("model.py:31", 3, 0.009, 0.009, "graphs", inside="parametrization"),
        RepeatedLine("model.py:26", 3, 0.003, 0.003),
    ]


@pytest.mark.parametrize(
    "told",
    [
        None,
        "x",
        {"looks": 4, "lines": []},
        {"looks": 0, "lines": [{"site": 1, "step_ns": 5, "calls": 1}]},
        {"looks": 4, "lines": {"site": 1}},
    ],
)
def test_nothing_is_read_from_nonsense(told: Any) -> None:
    assert repeated_calls([{"repeated_calls": told, "number": 1}], Sites(SITES, "/x")) is None


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (None, "ahead of the loop that comes by here, and pass it in"),
        ("parametrization", "parametrize.cached()"),
        ("weight_norm", "parametrizations.weight_norm"),
        ("attention", "F.scaled_dot_product_attention"),
    ],
)
def test_what_can_be_done_goes_by_what_of_torchs_computes(inside: str | None, words: str) -> None:
    finding = only(computing(RepeatedCalls(7, [replace(LINE, inside=inside)])))
    assert words in str(finding.advice)


@pytest.mark.parametrize("acts", [True, False])
def test_what_leaves_statistics_or_draws_numbers_is_minded(acts: bool) -> None:
    finding = only(computing(RepeatedCalls(7, [replace(LINE, acts=acts)])))
    assert any("running statistics" in one for one in finding.cautions) is acts


def test_nearly_all_of_computing_has_no_endless_gain() -> None:
    line = replace(LINE, step_s=MOST_S, learns_s=MOST_S)
    finding = only(computing(RepeatedCalls(7, [line])))
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] < 40
