"""When it is told that a model computes the same in each step, and what that is said to cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, on_device

from trainprof.analysis.constants import ConstantLine, Constants, constants
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY
from trainprof.analysis.names import Sites
from trainprof.analysis.torch_settings import TorchSettings

LINE = ConstantLine("model.py:26", 0.00048, 1 << 20)
TOLD = Constants(
    7, [LINE, ConstantLine("model.py:31", 0.00016, 0), ConstantLine("a.py:3", 1e-6, 0)]
)
SITES = {1: ["/x/model.py", 26, "forward"], 2: ["/x/model.py", 31, "forward"]}


def computing(told: Constants | None = TOLD) -> Case:
    healthy = Planted(workers=2, fetch_s=0.001, compute_s=0.01)
    return case_of(healthy, torch=TorchSettings(constants=told))


def test_it_is_told_by_the_line_of_the_most_time_with_the_others() -> None:
    case = computing()
    [finding] = diagnose(case).findings
    assert case.summary.training.steps == 1_250
    spent_s = 0.000641 * 1_250
    assert (finding.id, finding.site) == ("constant_in_forward", "model.py:26")
    assert "about 801 ms with those below, 40 % of training" in finding.title
    assert finding.also == ["so it is at model.py:31, 25 % of it"]
    assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)
    likely = case.training_s / (case.training_s - spent_s)
    assert finding.evidence[LIKELY] == pytest.approx(likely, rel=0.02)
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert 1.3 < low < likely < high < 2.2
    assert "all 7 steps that were looked at" in finding.cautions[0]
    assert len(finding.cautions) == 1


def test_what_a_library_computes_is_told_as_its_own() -> None:
    [finding] = diagnose(computing(Constants(7, [replace(LINE, package="graphs")]))).findings
    assert finding.title.startswith("graphs, which the model calls here, computes the same")
    assert finding.advice.startswith("have graphs keep it, where it can")


def test_no_more_is_told_than_forward_takes() -> None:
    [finding] = diagnose(computing(Constants(7, [replace(LINE, step_s=0.0019)]))).findings
    assert finding.recoverable_s == pytest.approx(2.0, rel=0.01)


def test_steps_that_took_longer_than_others_tell_nothing() -> None:
    assert diagnose(computing(Constants(7, [replace(LINE, step_s=0.0021)]))).findings == []


def test_it_is_said_where_later_steps_were_not_looked_at() -> None:
    [finding] = diagnose(computing(replace(TOLD, steps=100))).findings
    assert "the first 100 of 1,250 steps" in finding.cautions[1]
    [finding] = diagnose(computing(replace(TOLD, steps=625))).findings
    assert len(finding.cautions) == 1


def test_what_keeping_it_takes_is_said_where_that_is_much() -> None:
    [finding] = diagnose(computing(Constants(7, [replace(LINE, bytes=200 << 20)]))).findings
    assert finding.cautions[1] == "keeping it takes some 200 MiB"


@pytest.mark.parametrize("told", [None, Constants(7, [replace(LINE, step_s=0.00003)])])
def test_what_costs_little_is_not_told(told: Constants | None) -> None:
    assert diagnose(computing(told)).findings == []


def test_nothing_is_told_on_a_device() -> None:
    told = diagnose(on_device(computing(), host_s=1.4)).findings
    assert "constant_in_forward" not in [one.id for one in told]


def test_it_is_read_from_what_was_told_last() -> None:
    good = {"site": 1, "step_ns": 3_000_000, "bytes": 8}
    lines: list[Any] = [
        {**good, "site": 2, "step_ns": 9_000_000, "package": "graphs"},
        good,
        {**good, "site": 9},
        {**good, "step_ns": 0},
        {**good, "step_ns": "x"},
        "x",
    ]
    told = constants([{"constants": {"looks": 4, "lines": lines}, "number": 1}], Sites(SITES, "/x"))
    assert told is not None
    assert [(one.site, one.step_s, one.package) for one in told.lines] == [
        ("model.py:31", 0.009, "graphs"),
        ("model.py:26", 0.003, None),
    ]


@pytest.mark.parametrize(
    "told",
    [
        None,
        "x",
        {"looks": 4, "lines": []},
        {"looks": 0, "lines": [{"site": 1, "step_ns": 5, "bytes": 1}]},
        {"looks": 4, "lines": {"site": 1}},
    ],
)
def test_nothing_is_read_from_nonsense(told: Any) -> None:
    assert constants([{"constants": told, "number": 1}], Sites(SITES, "/x")) is None
