"""How much faster one side is: planted speed-ups, and pairs in which nothing was planted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.compared_runs import pace

from trainprof.analysis.statistics.speedup import (
    FASTER,
    LEAST_CHANCE,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    Pace,
    SpeedUp,
    chance_of,
    speed_up,
)

PAIRS = 200


def even(mean_s: float, count: int = 100) -> Pace:
    """Steps without any noise."""
    return Pace(mean_s, np.full(count, mean_s))


def width(ratio: SpeedUp) -> float:
    return ratio.high / ratio.low


def rates(side: int, planted: float, pairs: int = PAIRS, **noise: float) -> dict[str, float]:
    """Share of each verdict over pairs of simulated runs."""
    random = np.random.default_rng(17)
    verdicts = [
        speed_up(
            [pace(random, **noise) for _ in range(side)],
            [pace(random, level=1 + planted, **noise) for _ in range(side)],
        ).verdict
        for _ in range(pairs)
    ]
    return {name: verdicts.count(name) / pairs for name in (FASTER, SLOWER, NO_VISIBLE_DIFFERENCE)}


def test_a_speed_up_is_by_how_many_times_as_many_steps_are_made() -> None:
    ratio = speed_up([even(0.100)], [even(0.080)])
    assert ratio.verdict == FASTER
    # Steps without noise leave what runs differ by.
    ends = [1.25 / (1 + LEAST_CHANCE), 1.25, 1.25 * (1 + LEAST_CHANCE)]
    assert [ratio.low, ratio.mid, ratio.high] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("side", "noise"), [(1, {"run_noise": 0.01}), (3, {"run_noise": 0.03, "count": 100}), (2, {})]
)
def test_equal_runs_give_false_alarms_in_one_of_twenty_at_most(side, noise):
    verdicts = rates(side, 0.0, **noise)
    assert verdicts[FASTER] + verdicts[SLOWER] <= 0.05


def test_two_runs_each_are_never_less_sure_than_one() -> None:
    alone, twice = (rates(side=side, planted=0.05)[SLOWER] for side in (1, 2))
    assert twice > alone > 0.5
    # Where those of one side agree by luck, and those of the other do not.
    pair = speed_up([even(0.100), even(0.104)], [even(0.060), even(0.060)])
    single = speed_up([even(0.102)], [even(0.060)])
    assert width(single) < width(pair) < 1.2


def test_of_two_runs_each_the_machine_tells_how_far_they_may_be_apart() -> None:
    """By hand: 0.2 is known as if by four runs; the two that were measured agree to the digit."""
    base = [replace(even(0.100), wandering=0.2) for _ in range(2)]
    pair = speed_up(base, [even(0.050), even(0.050)])
    known = (math.log(1.2) / 1.959964) ** 2 / 2
    half = 2.306004 * math.sqrt(3 / 4 * known)  # Student's t of eight degrees of freedom
    # A side of more runs tells its own spread; that of two is as uncertain as before.
    more = speed_up([*base, *base], [even(0.050), even(0.050)])
    assert pair.low < more.low < 2 < 1.2 * more.low
    assert pair.low == pytest.approx(2 * math.exp(-half), rel=1e-4)
    assert pair.high == pytest.approx(2 * math.exp(half), rel=1e-4)


@pytest.mark.parametrize(
    ("side", "noise"), [(3, {}), (1, {"run_noise": 0.005, "noise": 0.03, "alike": 0.5})]
)
def test_a_planted_slow_down_by_five_percent_is_found(side: int, noise: dict[str, float]) -> None:
    verdicts = rates(side, 0.05, pairs=100, **noise)
    assert verdicts[SLOWER] >= 0.9
    assert verdicts[FASTER] == 0


def test_a_difference_smaller_than_chance_is_not_told_by_a_pair_but_by_groups() -> None:
    # Two percent, and not a grain of noise inside the runs.
    assert speed_up([even(0.100)], [even(0.102)]).verdict == NO_VISIBLE_DIFFERENCE
    base = [even(0.100 * factor) for factor in (0.999, 1.0, 1.001)]
    other = [even(0.102 * factor) for factor in (0.999, 1.0, 1.001)]
    groups = speed_up(base, other)
    assert groups.verdict == SLOWER
    assert groups.chance is None


def test_the_spread_of_runs_is_welchs_interval() -> None:
    factors = np.array([0.99, 1.0, 1.01])
    base = [Pace(float(factor), None) for factor in factors]
    other = [Pace(float(1.05 * factor), None) for factor in factors]
    ratio = speed_up(base, other)
    # Both spreads are 0.01; equal ones have 4 degrees of freedom: t = 2.7764.
    half = 2.7764 * np.sqrt(2 * 0.01**2 / 3)
    assert ratio.mid == pytest.approx(1 / 1.05)
    assert np.log(ratio.high) == pytest.approx(-np.log(1.05) + half, abs=1e-5)
    assert np.log(ratio.low) == pytest.approx(-np.log(1.05) - half, abs=1e-5)


def alone(**met: float) -> Pace:
    return replace(even(0.150), **met)  # type: ignore[arg-type]


GROUP = [even(0.1 * factor) for factor in (0.995, 1.0, 1.005)]


@pytest.mark.parametrize(
    ("met", "why"),
    [
        ({"disturbance": 2.5}, "other processes kept the CPU busy"),
        ({"wandering": 0.5}, "virtual cores may change their pace"),
    ],
)
def test_one_run_against_many_keeps_what_it_met(met: dict[str, float], why: str) -> None:
    ratio = speed_up(GROUP, [alone(**met)])
    assert (ratio.chance.share, ratio.chance.why) == (max(met.values()), why)
    # By hand: Student's t of two degrees of freedom, and by how much one run may be off.
    spread = 4.302653 * math.sqrt(0.005**2 * 4 / 3)
    half = math.hypot(spread, math.log1p(max(met.values())))
    assert ratio.low == pytest.approx(math.exp(-half) / 1.5, rel=1e-3)
    assert ratio.high == pytest.approx(math.exp(half) / 1.5, rel=1e-3)
    back = speed_up([alone(**met)], GROUP)
    assert back.high == pytest.approx(1 / ratio.low, rel=1e-3)
    if "disturbance" in met:
        assert ratio.verdict == NO_VISIBLE_DIFFERENCE


def test_one_run_whose_steps_drifted_is_no_surer_against_many() -> None:
    drifted = Pace(0.150, np.repeat([0.100, 0.200], 50))
    ratio = speed_up(GROUP, [drifted])
    assert ratio.verdict == NO_VISIBLE_DIFFERENCE
    assert ratio.chance.why == "step times drifted inside a run"


@pytest.mark.parametrize("met", [{}, {"disturbance": 0.03}, {"wandering": LEAST_CHANCE}])
def test_one_run_that_met_nothing_is_told_by_the_spread_of_the_others(met):
    ratio, plain = speed_up(GROUP, [alone(**met)]), speed_up(GROUP, [alone()])
    assert ratio == plain
    assert (ratio.verdict, ratio.chance) == (SLOWER, None)
    # What the group met is in its spread.
    busy = [replace(run, disturbance=2.5, wandering=0.5) for run in GROUP]
    assert speed_up(busy, [alone()]) == plain


def test_one_run_that_took_turns_with_the_others_met_what_they_did() -> None:
    ratio = speed_up(GROUP, [alone(wandering=0.5, disturbance=2.5)], took_turns=True)
    assert ratio == speed_up(GROUP, [alone()])
    # A pair has no spread that would tell it.
    pair = [even(0.1)], [alone(wandering=0.5)]
    assert speed_up(*pair, took_turns=True) == speed_up(*pair)


@pytest.mark.parametrize(
    ("base", "other"), [(even(0.1), even(0.2, count=5)), (Pace(0.1, None), even(0.2))]
)
def test_too_few_steps_and_means_alone_give_no_verdict(base: Pace, other: Pace) -> None:
    ratio = speed_up([base], [other])
    assert (ratio.verdict, ratio.low, ratio.high) == (UNKNOWN, None, None)
    assert ratio.why_unknown
    assert ratio.mid == pytest.approx(0.5)
    assert speed_up([even(0.1)], [even(0.2, count=6)]).verdict == SLOWER


DRIFTED = Pace(0.105, np.repeat([0.100, 0.110], 50))


@pytest.mark.parametrize(
    ("base", "other", "share", "why"),
    [
        ([even(0.1)], [even(0.1)], LEAST_CHANCE, None),
        ([even(0.1)], [replace(even(0.1), disturbance=0.4)], 0.4, "other processes"),
        ([replace(even(0.1), wandering=0.12)], [even(0.1)], 0.12, "virtual cores"),
        ([even(0.1)], [DRIFTED], 2 * math.log(1.1), "drifted"),
        ([even(0.1), even(0.12)], [even(0.1)], 2 * math.log(1.2), None),
    ],
)
def test_what_two_runs_may_differ_by_grows_with_what_disturbs_them(base, other, share, why):
    chance = chance_of(base, other)
    assert chance.share == pytest.approx(share)
    assert why is None or why in chance.why
