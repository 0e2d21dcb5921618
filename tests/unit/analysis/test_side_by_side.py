"""Loaders that are asked one after the other in every step: what more workers of one give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.loader_forecast import LoaderForecast, modelled
from trainprof.analysis.finding import LIKELY, Finding

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


def serial() -> Case:
    """20 ms for a batch of each, 20 ms of computing."""
    one, other = (Planted(fetch_s=0.02, compute_s=0.04, passes=1) for _ in range(2))
    return zipped(one, other, 0.06)


def hidden(making_s: float) -> Case:
    """One worker makes 60 ms, computing takes 20: the other's work lies within the wait of 40."""
    one = Planted(workers=1, fetch_s=0.06, compute_s=0.02, passes=1)
    other = Planted(workers=1, fetch_s=making_s, compute_s=0.06, passes=1)
    return zipped(one, other, 0.06)


def found(case: Case) -> list[Finding]:
    return diagnose(case).findings


def test_of_two_that_training_makes_itself_one_gives_what_it_takes() -> None:
    told = found(serial())[0]
    assert (told.id, told.site, told.change) == (
        "serial_loading",
        "train.py:41",
        {"num_workers": 1},
    )
    assert told.evidence[LIKELY] == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize(("making_s", "times"), [(0.06, None), (0.04, 1.5), (0.005, 3.0)])
def test_what_one_loader_gains_is_not_waited_for_at_another(
    making_s: float, times: float | None
) -> None:
    told = found(hidden(making_s))
    assert [one.id for one in told] == ([] if times is None else ["too_few_workers"])
    for finding in told:
        assert finding.evidence[LIKELY] == pytest.approx(times, rel=0.05)


def test_loaders_that_take_turns_are_each_as_fast_as_they_are() -> None:
    one, other = (Planted(fetch_s=0.03, compute_s=0.01, passes=1) for _ in range(2))
    [finding] = found(zipped(one, other, 0.08, iterations=2 * STEPS))
    assert finding.advice == "DataLoader(..., num_workers=3)"
    assert finding.evidence[LIKELY] == pytest.approx(4.0, rel=0.05)


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
