"""Loaders that are asked one after the other in every step: what more workers of one give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.loader_forecast import LoaderForecast, modelled
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.finding import BESIDE, LIKELY, LOADER_ID, Finding

STEPS = 200


def zipped(one: Planted, other: Planted, step_s: float, *, iterations: int = STEPS) -> Case:
    """Returns a run whose steps take a batch of both, or of either in turn."""
    other.loader = replace(other.loader, id=1, site="train.py:50")
    return of_steps(case_of(one, other), step_s, iterations)


def of_steps(case: Case, step_s: float, iterations: int = STEPS) -> Case:
    training = replace(case.summary.training, iterations=iterations, steps=STEPS)
    training_s = STEPS * step_s
    run = replace(case.summary.run, wall_s=1.1 * training_s)
    return replace(
        case,
        summary=replace(case.summary, training=training, run=run),
        training_s=training_s,
        feeding=[replace(fed, training_s=training_s) for fed in case.feeding],
    )


def serial(*, site: str = "train.py:50") -> Case:
    """20 ms for a batch of each, 20 ms of computing."""
    one, other = (Planted(fetch_s=0.02, compute_s=0.04, passes=1) for _ in range(2))
    case = zipped(one, other, 0.06)
    loaders = [one.loader, replace(other.loader, site=site)]
    feeding = [replace(f, loader=x) for f, x in zip(case.feeding, loaders, strict=True)]
    return replace(case, summary=replace(case.summary, loaders=loaders), feeding=feeding)


def hidden(making_s: float, **inputs: Any) -> Case:
    """One worker makes 60 ms, computing takes 20: the other's work lies within the wait of 40."""
    one = Planted(workers=1, fetch_s=0.06, compute_s=0.02, passes=1)
    other = Planted(workers=1, fetch_s=making_s, compute_s=0.06, passes=1, **inputs)
    return zipped(one, other, 0.06)


def found(case: Case) -> list[Finding]:
    return diagnose(case).findings


def test_of_two_that_training_makes_itself_both_are_named() -> None:
    [finding] = found(serial())
    assert (finding.id, finding.site) == ("serial_loading", "train.py:41")
    assert finding.advice == (
        "DataLoader(..., num_workers=1), and at train.py:50 DataLoader(..., num_workers=1)"
    )
    assert finding.evidence[LIKELY] == pytest.approx(3.0, rel=0.05)
    assert finding.recoverable_s == pytest.approx(STEPS * 0.04, rel=0.1)
    assert finding.evidence["alone_speedup"] == pytest.approx(1.5, rel=0.03)
    assert finding.evidence[BESIDE] == [
        {"site": "train.py:50", LOADER_ID: 1, "change": {"num_workers": 1}}
    ]
    assert finding.also[0].startswith("without the change at train.py:50 steps would be up to")


def test_of_loaders_that_one_line_builds_all_are_changed_at_once() -> None:
    [finding] = found(serial(site="train.py:41"))
    assert finding.advice == "DataLoader(..., num_workers=1)"
    assert finding.evidence[LIKELY] == pytest.approx(3.0, rel=0.05)
    assert BESIDE not in finding.evidence


def test_what_one_loader_gains_is_not_waited_for_at_another() -> None:
    [finding] = found(hidden(0.06))
    assert (finding.id, finding.site) == ("too_few_workers", "train.py:41")
    assert "and at train.py:50 DataLoader(..., num_workers=" in finding.advice
    assert finding.evidence[LIKELY] == pytest.approx(3.0, rel=0.1)
    assert finding.evidence["alone_speedup"] == pytest.approx(1.0, abs=0.03)
    assert finding.also[0].startswith("without the change at train.py:50 nothing would be gained")


@pytest.mark.parametrize(("making_s", "most"), [(0.06, None), (0.04, 1.5)])
def test_where_the_other_cannot_be_faster_the_gain_is_no_more_than_it_lets(
    making_s: float, most: float | None
) -> None:
    """A stream of one shard has work for one worker."""
    told = found(hidden(making_s, shards=1))
    assert len(told) == (0 if most is None else 1)
    for finding in told:
        assert finding.evidence[LIKELY] == pytest.approx(most, rel=0.05)
        assert "train.py:50" not in finding.advice


def test_one_that_keeps_up_anyway_changes_nothing() -> None:
    [finding] = found(hidden(0.005))
    [alone] = found(
        of_steps(case_of(Planted(workers=1, fetch_s=0.06, compute_s=0.02, passes=1)), 0.06)
    )
    assert finding.advice == alone.advice
    assert finding.predicted_speedup == alone.predicted_speedup
    assert finding.also == alone.also


def test_loaders_that_take_turns_are_each_as_fast_as_they_are() -> None:
    one, other = (Planted(fetch_s=0.03, compute_s=0.01, passes=1) for _ in range(2))
    [finding] = found(zipped(one, other, 0.08, iterations=2 * STEPS))
    assert finding.advice == "DataLoader(..., num_workers=3)"
    assert finding.evidence[LIKELY] == pytest.approx(4.0, rel=0.05)


def test_what_both_give_is_counted_once() -> None:
    """One has no workers, the other too few: each is found, and both are told with the first."""
    one = Planted(fetch_s=0.03, compute_s=0.04, passes=1)
    other = Planted(workers=1, fetch_s=0.06, compute_s=0.04, passes=1)
    case = zipped(one, other, 0.07)
    first, second = sorted(found(case), key=lambda finding: BESIDE not in finding.evidence)
    assert (first.id, second.id) == ("serial_loading", "too_few_workers")
    assert BESIDE not in second.evidence
    assert second.evidence[LIKELY] <= first.evidence[LIKELY]
    all_s = (first.recoverable_s or 0.0) + (second.recoverable_s or 0.0)
    assert all_s < STEPS * 0.07
    assert (together(case, [first, second]) or 0.0) < 8.0


@pytest.mark.parametrize(("felt", "times"), [(None, 3.0), (1.0, 3.0), (0.5, 1.5), (0.0, 1.0)])
def test_steps_get_no_shorter_than_a_device_takes_for_them(
    felt: float | None, times: float
) -> None:
    """Of the 40 ms of waits it had nothing to do for a share."""
    case = serial()
    loaders = modelled(case.feeding)
    settings = [replace(one.inputs.setting, workers=1) for one in loaders]
    steps = LoaderForecast(case, loaders, felt=felt).of_steps(settings)
    assert steps is not None
    assert steps.mid == pytest.approx(times, rel=0.03)
