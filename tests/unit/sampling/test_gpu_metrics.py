"""How often a metric is asked for."""

from __future__ import annotations

import pytest

from trainprof.sampling.gpu_metrics import MAX_INTERVAL_NS, MetricPace, Tier

MS = 1_000_000
S = 1000 * MS


def asked_at(pace, took_ns, *, ticks_s=range(60), is_answered=True):
    """Returns the ticks, in s, at which it was due and asked."""
    at = []
    for tick_s in ticks_s:
        if pace.is_due(int(tick_s * S)):
            pace.asked(int(tick_s * S), took_ns, is_answered=is_answered)
            at.append(tick_s)
    return at


def test_a_dear_call_is_made_every_second_at_most():
    pace = MetricPace(Tier.RARE, S // 2, devices=1)
    assert asked_at(pace, 20 * MS, ticks_s=(0, 0.5, 1, 1.5, 2)) == [0, 1, 2]
    assert pace.slowed_ns is None


@pytest.mark.parametrize("tier", Tier)
def test_a_slow_call_is_made_less_often(tier):
    pace = MetricPace(tier, S // 2, devices=1)
    assert asked_at(pace, 300 * MS) == [0, 1, 16, 31, 46]
    assert pace.slowed_ns == 15 * S


def test_devices_share_the_driver():
    pace = MetricPace(Tier.RARE, S // 2, devices=8)
    assert asked_at(pace, 20 * MS) == [0, 1, *range(9, 60, 8)]


def test_a_call_that_was_late_once_costs_nothing():
    pace = MetricPace(Tier.EVERY_SAMPLE, S // 2, devices=1)
    for took_ns in (1, 300 * MS, 1, 300 * MS):
        pace.asked(0, took_ns, is_answered=True)
        assert pace.slowed_ns is None


def test_a_failure_is_tried_again_later_and_later():
    pace = MetricPace(Tier.EVERY_SAMPLE, S // 2, devices=1)
    assert asked_at(pace, 1, is_answered=False) == [0, 1, 3, 7, 15, 31]
    pace.asked(60 * S, 1, is_answered=True)
    assert asked_at(pace, 1, is_answered=False)[:3] == [0, 1, 3]


def test_nothing_is_put_off_for_ever():
    pace = MetricPace(Tier.RARE, S // 2, devices=16)
    for _ in range(100):
        pace.asked(0, 3600 * S, is_answered=False)
    assert pace.slowed_ns == MAX_INTERVAL_NS
