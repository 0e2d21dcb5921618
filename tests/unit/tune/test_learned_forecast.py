"""Forecasts that count what a trial before has shown."""

from __future__ import annotations

import pytest
from support.planted_trials import FakeRunner, Planted, plan_of, search_of, threads, workers

from trainprof.analysis.statistics.speedup import FASTER, SpeedUp
from trainprof.tune.candidate import Candidate, learned

TWO, FOUR = workers(2, 1.0, 2.0), workers(4, 1.5, 3.0)


def measured(low: float, mid: float, high: float):
    return lambda one: SpeedUp(low, mid, high, FASTER) if one is TWO else None


def test_what_the_model_says_of_one_against_the_other_is_put_upon_what_the_other_gave() -> None:
    found = learned(FOUR, [TWO, FOUR], measured(1.58, 1.6, 1.62))
    low, high = found
    assert low < 1.6 * 1.5 < high
    assert low == pytest.approx(2.4 / 1.1, rel=0.01)
    assert high == pytest.approx(2.4 * 1.1, rel=0.01)


def test_where_the_model_is_unsure_of_the_one_against_the_other_so_is_the_forecast() -> None:
    other = workers(4, 1.5, 2.0)
    found = learned(other, [TWO], measured(1.58, 1.6, 1.62))
    assert found == other.predicted  # 1.0 to 1.5 times as fast as the other: no narrower
    other = workers(4, 1.1, 2.0)
    found = learned(other, [TWO], measured(1.58, 1.6, 1.62))
    assert found == pytest.approx((1.6 / 1.1, 1.6 * 1.1 * 1.1), rel=0.02)


@pytest.mark.parametrize(
    ("tried", "speed_of"),
    [
        ([TWO, FOUR], lambda one: None),  # none was run
        ([TWO, FOUR], measured(0.8, 1.6, 3.2)),  # too noisy
        ([threads(1)], lambda one: SpeedUp(1.58, 1.6, 1.62, FASTER)),  # something else
        ([FOUR], lambda one: SpeedUp(1.58, 1.6, 1.62, FASTER)),  # itself
        ([TWO], lambda one: SpeedUp(None, 1.6, None, FASTER)),  # too few steps
    ],
)
def test_nothing_is_learned_from_what_tells_no_more(tried, speed_of) -> None:
    assert learned(FOUR, tried, speed_of) == FOUR.predicted


def test_where_no_model_applies_none_is_made() -> None:
    other = Candidate("workers", {"num_workers": 4}, None)
    assert learned(other, [TWO], measured(1.58, 1.6, 1.62)) is None


def test_the_second_number_of_workers_is_foretold_from_the_first() -> None:
    """The model is too hopeful of both alike, as where threads and workers share cores."""
    step_s = {0: 0.010, 2: 0.008, 4: 0.005}
    runner = FakeRunner(Planted(lambda changed: step_s[changed.get("num_workers", 0)], steps=2000))
    plan = plan_of(workers(2, 1.0, 2.0), workers(4, 1.6, 3.2))
    found = search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()
    assert found.predicted["num_workers=2"] == (1.0, 2.0)
    low, high = found.predicted["num_workers=4"]
    assert low < 2.0 < high < 1.4 * low
