"""Where the time of fetches went, from planted tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fetch_tables import MS, table
from support.usage import ask

from trainprof.analysis.loading import fetch_usage
from trainprof.analysis.loading.fetches import FetchTable
from trainprof.inside.spans import fetch_usage as probe
from trainprof.inside.spans.fetch_usage import LONG_NS, ONE_OF_SHORT, SHORT_NS, UsageMeter

PARTS = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
FIGURES = (*PARTS, "cpu_s", "read_bytes", "major_faults")


def usage_of(fetches: FetchTable) -> SimpleNamespace:
    return SimpleNamespace(**fetch_usage.usage_of(fetches))


def ms(usage: SimpleNamespace) -> dict[str, float | None]:
    """The five parts in ms."""
    found = {name: getattr(usage, name) for name in PARTS}
    return {name: None if s is None else round(s * 1e3, 6) for name, s in found.items()}


def test_a_sleep_is_asleep():
    assert ms(usage_of(table())) == {
        "running_s": 0,
        "runnable_s": 0,
        "throttled_s": 0,
        "reading_s": None,
        "asleep_s": 10,
    }


def test_each_part_has_its_own():
    found = usage_of(
        table(
            cpu_ns=3 * MS,
            process_cpu_ns=3 * MS,
            delay_ns=4 * MS,
            throttled_ns=1 * MS,
            reading_ns=2 * MS,
            read_bytes=4096,
            major_faults=2,
        )
    )
    assert ms(found) == {
        "running_s": 3,
        "runnable_s": 3,
        "throttled_s": 1,
        "reading_s": 2,
        "asleep_s": 1,
    }
    assert (found.read_bytes, found.major_faults) == (4096, 2)


def test_others_that_work_while_it_sleeps_are_running_up_to_the_wall():
    one = usage_of(table(cpu_ns=1 * MS, process_cpu_ns=5 * MS))
    assert (one.running_s, one.asleep_s) == pytest.approx((0.005, 0.005))
    many = usage_of(table(cpu_ns=1 * MS, process_cpu_ns=64 * MS))
    assert (many.running_s, many.asleep_s) == pytest.approx((0.010, 0.0))
    assert many.cpu_s == pytest.approx(0.064)


def test_where_the_model_is_trained_others_only_spin():
    """torch's threads do for some ms after each operation; nobody waits for them in a sleep."""
    found = usage_of(table(worker=0, cpu_ns=1 * MS, process_cpu_ns=10 * MS))
    assert (found.running_s, found.asleep_s) == pytest.approx((0.001, 0.009))
    assert found.cpu_s == pytest.approx(0.010)


def test_others_do_not_hide_that_no_core_was_free():
    found = usage_of(table(cpu_ns=1 * MS, process_cpu_ns=64 * MS, delay_ns=6 * MS))
    assert (found.running_s, found.runnable_s) == pytest.approx((0.004, 0.006))


def test_throttling_is_no_more_than_was_waited():
    """The cgroup's clock adds up over cores."""
    found = usage_of(table(delay_ns=2 * MS, throttled_ns=50 * MS))
    assert (found.runnable_s, found.throttled_s) == pytest.approx((0.0, 0.002))


def test_what_the_kernel_does_not_tell_is_none_and_asleep():
    found = ms(usage_of(table(cpu_ns=3 * MS, process_cpu_ns=3 * MS, delay_ns=np.nan)))
    assert found == {
        "running_s": 3,
        "runnable_s": None,
        "throttled_s": None,
        "reading_s": None,
        "asleep_s": 7,
    }


def test_without_a_measured_fetch_nothing_is_known():
    nothing = table(3, stands_for=0.0, cpu_ns=np.nan, process_cpu_ns=np.nan, delay_ns=np.nan)
    assert fetch_usage.usage_of(nothing) == dict.fromkeys(FIGURES) | {"measured": 0}


def test_totals_stand_for_all_fetches():
    """Every second one measured, all alike."""
    measured = np.array([1.0, 0.0] * 50)
    cpu = np.where(measured > 0, 4.0 * MS, np.nan)
    found = usage_of(
        table(100, stands_for=2 * measured, cpu_ns=cpu, process_cpu_ns=cpu, read_bytes=cpu)
    )
    assert (found.running_s, found.asleep_s) == pytest.approx((0.4, 0.6))
    assert found.read_bytes == 100 * 4 * MS
    assert found.measured == 50


LONG, MIDDLING, SHORT = 40 * MS, 4 * MS, MS // 10


@pytest.mark.parametrize(
    "pattern",
    [
        [LONG] + [SHORT] * 7,
        [LONG] * 4 + [SHORT] * 4,
        [LONG] + [SHORT] * 49,
        [SHORT] * 3 + [LONG],
        [LONG] * 64 + [SHORT] * 64,
        [LONG, MIDDLING, SHORT, SHORT, MIDDLING],
        [MIDDLING] * 8 + [SHORT] * 8,
        [MIDDLING] + [SHORT] * 15,
    ],
    ids=lambda pattern: " ".join(f"{ns / MS:g}" for ns in dict.fromkeys(pattern)),
)
def test_fetches_that_come_in_a_pattern_are_told_as_they_are(
    pattern: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest sleep, the others compute: which are measured must not matter."""
    monkeypatch.setattr(probe.os, "register_at_fork", lambda **_: None)
    assert SHORT < SHORT_NS < MIDDLING < LONG_NS < LONG
    meter = UsageMeter(lambda *_: None, None)
    walls = pattern * (40_000 // len(pattern))
    weights = []
    for wall in walls:
        begun = ask(meter)
        weights.append(0 if begun is None else begun[0])
        meter.took(wall)
    wall, weight = np.array(walls), np.array(weights)
    assert set(weights) > {0, ONE_OF_SHORT}
    computes = wall < max(pattern)
    cpu = np.where(weight > 0, np.where(computes, wall, 0.0), np.nan)
    found = usage_of(
        table(len(wall), wall_ns=wall, stands_for=weight, cpu_ns=cpu, process_cpu_ns=cpu)
    )
    assert found.running_s == pytest.approx(wall[computes].sum() / 1e9, rel=0.05)
    assert found.running_s + found.asleep_s == pytest.approx(wall.sum() / 1e9)


def a_number(lowest: float = 0) -> st.SearchStrategy[float]:
    return st.floats(lowest, 1e12) | st.just(np.nan) | st.just(0.0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**12),
            st.integers(0, 255),
            a_number(),
            a_number(-1e12),
            a_number(),
            a_number(),
            a_number(),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=300, deadline=None)
def test_the_five_parts_are_the_wall_time_whatever_was_recorded(rows: list[tuple[Any, ...]]):
    wall, weight, cpu, process, delay, throttled, reading = map(np.array, zip(*rows, strict=True))
    # What was measured at all has both clocks.
    weight = np.where(np.isnan(cpu) | np.isnan(process), 0, weight)
    found = usage_of(
        table(
            len(rows),
            wall_ns=wall,
            stands_for=weight,
            cpu_ns=cpu,
            process_cpu_ns=process,
            delay_ns=delay,
            throttled_ns=throttled,
            reading_ns=reading,
        )
    )
    parts = [getattr(found, name) for name in PARTS]
    if not (weight > 0).any():
        assert parts == [None] * 5
        return
    assert all(part is None or part >= 0 for part in parts)
    covered = (weight * wall).sum() > 0
    total = sum(part or 0.0 for part in parts)
    assert total == pytest.approx(wall.sum() / 1e9 if covered else 0.0, rel=1e-9, abs=1e-12)
