"""Energy from planted power and counters, against the integral worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.analysis.gpu_energy import MAX_POWER_GAP_NS, energy_curve

S = 1_000_000_000
NAN = float("nan")
# A clock's reading after half a year: seconds must not be lost in floats of it.
SINCE = 15_000_000 * S


def joules(times_s, counter_j, power_w, start_s, end_s):
    """Returns (energy in J, observed seconds, estimated seconds) between two moments."""
    curve = energy_curve(
        np.array([SINCE + int(t * S) for t in times_s], dtype=np.int64),
        np.array(counter_j, dtype=np.float64) * 1000,
        np.array(power_w, dtype=np.float64),
    )
    start_ns, end_ns = (np.array([SINCE + int(t * S)]) for t in (start_s, end_s))
    part = curve.between(start_ns, end_ns)
    return part.wh[0] * 3600, part.observed_s[0], part.estimated_s[0]


def test_the_counter_is_read_between_its_samples():
    told = joules([0, 10, 30], [500, 600, 1000], [NAN] * 3, start_s=5, end_s=20)
    assert told == pytest.approx((5 * 10 + 10 * 20, 15, 0))


def test_without_a_counter_power_is_a_line_between_samples():
    told = joules([0, 2, 6], [NAN] * 3, [0, 100, 100], start_s=0, end_s=6)
    assert told == pytest.approx((2 * 50 + 4 * 100, 6, 6))


def test_a_part_of_a_stretch_has_the_lines_own_area():
    told = joules([0, 4], [NAN] * 2, [0, 100], start_s=1, end_s=2)
    assert told == pytest.approx(((25 + 50) / 2, 1, 1))


def test_samples_need_not_be_evenly_spaced():
    times_s = np.cumsum(np.tile([0.1, 0.7, 0.2, 1.5], 20))
    power_w = 50 + 3 * times_s
    expected = np.trapezoid(power_w, times_s) if hasattr(np, "trapezoid") else None
    energy = 50 * (times_s[-1] - times_s[0]) + 1.5 * (times_s[-1] ** 2 - times_s[0] ** 2)
    told = joules(times_s, [NAN] * len(times_s), power_w, start_s=0, end_s=100)
    assert told[0] == pytest.approx(energy)
    assert expected is None or told[0] == pytest.approx(expected)


def test_a_counter_that_goes_back_is_replaced_for_that_stretch_alone():
    told = joules([0, 1, 2, 3], [900, 1000, 5, 105], [100, 100, 300, 300], start_s=0, end_s=3)
    assert told == pytest.approx((100 + (100 + 300) / 2 + 100, 3, 1))


def test_a_counter_that_is_not_told_for_a_while_still_counts():
    told = joules([0, 1, 2, 3], [0, NAN, NAN, 90], [7, 7, 7, 7], start_s=1, end_s=2)
    assert told == pytest.approx((30, 1, 0))


def test_a_counter_that_comes_late_leaves_its_lead_to_power():
    told = joules([0, 1, 2], [NAN, 50, 60], [100, 100, 100], start_s=0, end_s=2)
    assert told == pytest.approx((100 + 10, 2, 1))


def test_what_neither_tells_is_not_observed():
    told = joules([0, 1, 2], [0, 10, NAN], [NAN, NAN, 100], start_s=0, end_s=2)
    assert told == pytest.approx((10, 1, 0))


def test_power_is_not_drawn_on_over_a_long_gap():
    gap_s = MAX_POWER_GAP_NS / S
    times_s = [0, 1, 1 + gap_s / 2, 2 + gap_s, 3 + gap_s]
    told = joules(times_s, [NAN] * 5, [10, 10, NAN, 10, 10], start_s=0, end_s=times_s[-1])
    assert told == pytest.approx((20, 2, 2))


def test_nothing_is_known_outside_the_samples():
    assert joules([5, 6], [0, 10], [NAN] * 2, start_s=0, end_s=20) == pytest.approx((10, 1, 0))
    assert joules([5], [0], [10], start_s=0, end_s=20) == (0, 0, 0)
    assert joules([], [], [], start_s=0, end_s=20) == (0, 0, 0)


def test_a_power_below_nothing_is_damage():
    assert joules([0, 1], [NAN] * 2, [-5, 100], start_s=0, end_s=1) == (0, 0, 0)


def test_two_samples_at_one_moment_do_no_harm():
    told = joules([0, 1, 1, 2], [0, 10, 10, 30], [NAN] * 4, start_s=0, end_s=2)
    assert told == pytest.approx((30, 2, 0))
