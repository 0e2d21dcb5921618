"""Loaders that are asked one after the other in every step: what more workers of one give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import STEPS, Planted, case_of, with_run, with_summary

from trainprof.analysis.summary.finding import LIKELY
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.tune.loader_forecast import LoaderForecast, modelled


def zipped(planted: Planted, other: Planted, step_s: float) -> RunContext:
    """Returns a run whose steps take a batch of both."""
    context = case_of(planted, other.having(id=1, site="train.py:50"))
    training = replace(context.summary.training, iterations=STEPS, steps=STEPS)
    training_s = STEPS * step_s
    feeding = [replace(feeder, training_s=training_s) for feeder in context.feeding]
    context = with_run(with_summary(context, training=training), wall_s=1.1 * training_s)
    return replace(context, training_s=training_s, feeding=feeding)


def serial() -> RunContext:
    """20 ms for a batch of each, 20 ms of computing."""
    return zipped(*(Planted(fetch_s=0.02, compute_s=0.04, passes=1) for _ in range(2)), 0.06)


def test_each_of_two_has_the_gain_that_it_gives_alone() -> None:
    findings = diagnose(serial()).findings
    assert {(x.id, x.site) for x in findings} == {("serial_loading", "train.py:41")}
    assert findings[0].evidence[LIKELY] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(("making_s", "times"), [(0.06, None), (0.04, 1.5), (0.005, 3.0)])
def test_what_one_gains_is_not_waited_for_at_another(making_s: float, times: float | None) -> None:
    """One worker makes 60 ms, computing takes 20: the other's work lies within the wait of 40."""
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.02, passes=1)
    other = Planted(workers=1, fetch_s=making_s, compute_s=0.06, passes=1)
    findings = diagnose(zipped(planted, other, 0.06)).findings
    expected = [] if times is None else [pytest.approx(times, rel=0.05)]
    assert [x.evidence[LIKELY] for x in findings] == expected


@pytest.mark.parametrize(("workers", "times"), [((1, 1), 3.0), ((1, 0), 1.5)])
def test_what_a_trial_of_both_will_show(workers: tuple[int, int], times: float) -> None:
    context = serial()
    loaders = modelled(context.feeding)
    settings = [
        replace(loader.inputs.setting, workers=count)
        for loader, count in zip(loaders, workers, strict=True)
    ]
    speed = LoaderForecast(context, loaders).speedup(settings)
    assert speed is not None
    assert speed.low <= times <= speed.high
    assert speed.mid == pytest.approx(times, rel=0.1)
