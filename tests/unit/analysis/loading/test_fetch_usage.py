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

from trainprof.analysis.loading import batch_preparation
from trainprof.analysis.loading.batch_preparation import (
    MIN_STATES,
    StateSamples,
    with_sampled_reading,
)
from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.machine.processes import Tick
from trainprof.analysis.timeline.events import joined_tables, rows_of
from trainprof.inside.spans import fetch_usage as probe
from trainprof.inside.spans.fetch_usage import ONE_OF, SHORT_NS, UsageMeter

PARTS = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
FIGURES = (*PARTS, "cpu_s", "read_bytes", "major_faults")


def usage_of(fetches: FetchTable) -> SimpleNamespace:
    return SimpleNamespace(**batch_preparation.usage_of(fetches))


ALL_PARTS = {
    "cpu_ns": 3 * MS,
    "process_cpu_ns": 3 * MS,
    "delay_ns": 4 * MS,
    "throttled_ns": MS,
    "reading_ns": 2 * MS,
    "read_bytes": 4096,
    "major_faults": 2,
}


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        pytest.param({}, (0, 0, 0, None, 10), id="a sleep"),
        pytest.param(ALL_PARTS, (3, 3, 1, 2, 1), id="each part"),
        # Others that work while it sleeps are running, up to the wall.
        pytest.param({"cpu_ns": MS, "process_cpu_ns": 5 * MS}, (5, 0, 0, None, 5), id="others"),
        pytest.param({"cpu_ns": MS, "process_cpu_ns": 64 * MS}, (10, 0, 0, None, 0), id="many"),
        # Where the model is trained torch's threads only spin after each operation.
        pytest.param(
            {"worker": 0, "cpu_ns": MS, "process_cpu_ns": 10 * MS}, (1, 0, 0, None, 9), id="spin"
        ),
        # They do not hide that no core was free.
        pytest.param(
            {"cpu_ns": MS, "process_cpu_ns": 64 * MS, "delay_ns": 6 * MS},
            (4, 6, 0, None, 0),
            id="no core",
        ),
        # The cgroup's clock adds up over cores: throttling is no more than was waited.
        pytest.param(
            {"delay_ns": 2 * MS, "throttled_ns": 50 * MS}, (0, 0, 2, None, 8), id="throttled"
        ),
        pytest.param(
            {"cpu_ns": 3 * MS, "process_cpu_ns": 3 * MS, "delay_ns": np.nan},
            (3, None, None, None, 7),
            id="not known of the kernel",
        ),
    ],
)
def test_where_the_time_of_a_fetch_went(columns, parts):
    usage = usage_of(table(**columns))
    ms = [None if (s := getattr(usage, name)) is None else round(s * 1e3, 6) for name in PARTS]
    assert tuple(ms) == parts
    assert usage.cpu_s == columns.get("process_cpu_ns", 0) / 1e9
    if columns is ALL_PARTS:
        assert (usage.read_bytes, usage.major_faults) == (4096, 2)


def test_without_a_measured_fetch_nothing_is_known():
    nothing = table(3, stands_for=0.0, cpu_ns=np.nan, process_cpu_ns=np.nan, delay_ns=np.nan)
    assert batch_preparation.usage_of(nothing) == dict.fromkeys(FIGURES) | {"measured": 0}


LONG, MIDDLING, SHORT = 40 * MS, 4 * MS, MS // 10


@pytest.mark.parametrize(
    "pattern",
    [
        [LONG] + [SHORT] * 49,
        [LONG] * 64 + [SHORT] * 64,
        [LONG, MIDDLING, SHORT, SHORT, MIDDLING],
        [MIDDLING] * 8 + [SHORT] * 8,
        [LONG] * 20 + [SHORT] * 600,
    ],
    ids=lambda pattern: " ".join(f"{ns / MS:g}" for ns in dict.fromkeys(pattern)),
)
def test_fetches_that_come_in_a_pattern_are_told_as_they_are(pattern, monkeypatch):
    """The longest sleep, the others compute: which are measured must not matter."""
    monkeypatch.setattr(probe.os, "register_at_fork", lambda **_: None)
    assert SHORT < SHORT_NS < MIDDLING
    meter = UsageMeter(lambda *_: None, None)
    walls = pattern * (120_000 // len(pattern))
    weights = []
    for wall in walls:
        begun = ask(meter)
        weights.append(0 if begun is None else begun[0])
        meter.took(wall)
    wall, weight = np.array(walls), np.array(weights)
    assert set(weights) > {0, ONE_OF}
    assert weight[wall < SHORT_NS].sum() == pytest.approx((wall < SHORT_NS).sum(), rel=0.03)
    computes = wall < max(pattern)
    cpu = np.where(weight > 0, np.where(computes, wall, 0.0), np.nan)
    usage = usage_of(
        table(len(wall), wall_ns=wall, stands_for=weight, cpu_ns=cpu, process_cpu_ns=cpu)
    )
    assert usage.running_s == pytest.approx(wall[computes].sum() / 1e9, rel=0.05)
    assert usage.running_s + usage.asleep_s == pytest.approx(wall.sum() / 1e9)


def a_number(lowest: float = 0) -> st.SearchStrategy[float]:
    return st.floats(lowest, 1e12) | st.just(np.nan) | st.just(0.0)


COLUMNS = {
    "wall_ns": st.integers(0, 10**12),
    "stands_for": st.integers(0, 255),
    "cpu_ns": a_number(),
    "process_cpu_ns": a_number(-1e12),
    "delay_ns": a_number(),
    "throttled_ns": a_number(),
    "reading_ns": a_number(),
}


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_the_five_parts_are_the_wall_time_whatever_was_recorded(rows: list[dict[str, Any]]):
    columns = {name: np.array([row[name] for row in rows]) for name in COLUMNS}
    # What was measured at all has both clocks.
    unmeasured = np.isnan(columns["cpu_ns"]) | np.isnan(columns["process_cpu_ns"])
    columns["stands_for"] = weight = np.where(unmeasured, 0, columns["stands_for"])
    usage = usage_of(table(len(rows), **columns))
    parts = [getattr(usage, name) for name in PARTS]
    if not (weight > 0).any():
        assert parts == [None] * 5
        return
    assert all(part is None or part >= 0 for part in parts)
    wall = columns["wall_ns"]
    wall_s = wall.sum() / 1e9 if (weight * wall).sum() > 0 else 0.0
    assert sum(part or 0.0 for part in parts) == pytest.approx(wall_s, rel=1e-9, abs=1e-12)


# Reading, as sampled

FETCHES = 40


def fetches(**columns: Any) -> FetchTable:
    """Fetches of 10 ms, one each 20 ms, by worker 7, that have read."""
    plain = {"pid": 7, "loader": 1, "start_ns": np.arange(FETCHES) * 20 * MS, "read_bytes": 4096}
    return table(FETCHES, **{**plain, **columns})


def met(each: str, pid: int = 7, after: int = 0) -> StateSamples:
    """In each fetch a sample for each letter, evenly; `after` so many ms after its start."""
    rows = [
        (pid, (20 * fetch + after) * MS + (place * 10 + 5) * MS // len(each), letter == "D")
        for fetch in range(FETCHES)
        for place, letter in enumerate(each)
    ]
    columns = np.array(rows, dtype=np.int64).T
    return StateSamples(columns[0], columns[1], columns[2] > 0)


def sampled(table: FetchTable, states: StateSamples, main_thread: int | None) -> FetchTable:
    return with_sampled_reading(table, lambda pids: states, main_thread)


def reading_ms(fetched: FetchTable) -> float:
    return float(np.nansum(fetched.reading_ns)) / MS


def test_the_share_of_samples_is_the_share_of_time():
    table_of_fetches = sampled(fetches(), met("DDDS"), 0)
    assert reading_ms(table_of_fetches) == pytest.approx(0.75 * FETCHES * 10)
    usage = usage_of(table_of_fetches)
    assert usage.reading_s == pytest.approx(0.3)
    assert usage.asleep_s == pytest.approx(0.1)


MIXED = np.where(np.arange(FETCHES) % 2, 10 * MS, 2 * MS)
HALF = np.where(np.arange(FETCHES) % 2, 4096, 0)
RUNNING = {"cpu_ns": 6 * MS, "process_cpu_ns": 6 * MS, "delay_ns": 1 * MS}
UNMEASURED = np.where(np.arange(FETCHES) % 2, 2.0, 0.0)


@pytest.mark.parametrize(
    ("columns", "states", "even_ms", "odd_ms"),
    [
        pytest.param(RUNNING, "DDDR", 3, 3, id="no more than was asleep"),
        pytest.param({"wall_ns": MIXED}, "D", 2, 10, id="who slept longest read longest"),
        pytest.param({"read_bytes": 0}, "D", None, None, id="without a byte read"),
        pytest.param({"read_bytes": HALF}, "DD", 0, 10, id="half of them read"),
        pytest.param({"read_bytes": 0, "major_faults": 2}, "D", 10, 10, id="pages read"),
        pytest.param({"stands_for": UNMEASURED}, "DDD", None, 10, id="half of them measured"),
    ],
)
def test_how_long_fetches_read(columns, states, even_ms, odd_ms):
    reading_ns = sampled(fetches(**columns), met(states), 0).reading_ns
    for own, expected_ms in ((reading_ns[::2], even_ms), (reading_ns[1::2], odd_ms)):
        if expected_ms is None:
            assert np.isnan(own).all()
        else:
            assert own / MS == pytest.approx(expected_ms)


def test_what_the_kernel_tells_is_left():
    known = fetches(reading_ns=3 * MS)
    assert sampled(known, met("D"), 0) is known


def test_few_samples_and_samples_between_fetches_tell_nothing():
    few = rows_of(met("D"), slice(MIN_STATES - 1))
    for states in (few, met("D", after=10)):
        assert np.isnan(sampled(fetches(), states, 0).reading_ns).all()


def test_of_the_process_that_trains_only_its_main_thread_is_sampled():
    here = fetches(worker=0, thread=2)
    assert reading_ms(sampled(here, met("D"), 2)) == FETCHES * 10
    for main in (0, None):
        assert np.isnan(sampled(here, met("D"), main).reading_ns).all()


def test_loaders_are_told_apart_and_a_loaders_workers_are_taken_together():
    pid = np.arange(FETCHES) % 2 + 7
    loader = np.where(np.arange(FETCHES) < FETCHES // 2, 1, 2)
    states = joined_tables(StateSamples, [met("D", 7), met("S", 8)])
    assert reading_ms(sampled(fetches(pid=pid), states, 0)) == pytest.approx(FETCHES * 10 / 2)
    assert np.isnan(sampled(fetches(pid=pid, loader=loader), met("D", 7), 0).reading_ns).all()


def test_frequent_samples_stand_for_all_of_a_process():
    def tick(t_ns: int, **states: str) -> Tick:
        rows = {(int(k[1:]), 5): {"state": state} for k, state in states.items()}
        return Tick(t_ns, {**rows, (9, 5): {}})

    ticks = [tick(10, p7="D", p8="S"), tick(50, p7="S", p6="D")]
    lines = [
        {"t_ns": 30, "states": {"7": "D", "8": "R"}},
        {"t_ns": 40, "states": {"77": "D", "x": "D", "8": 4}},
        {"t_ns": 45, "states": ["D"]},
        {"t_ns": 46},
    ]
    samples = StateSamples.of({6, 7, 8, 9}, ticks, lines)
    t_ns, is_waiting = samples.of_process(7)
    assert (t_ns.tolist(), is_waiting.tolist()) == ([30], [True])
    t_ns, is_waiting = samples.of_process(8)
    assert (t_ns.tolist(), is_waiting.tolist()) == ([30, 40], [False, False])
    t_ns, is_waiting = samples.of_process(6)  # of an older run
    assert (t_ns.tolist(), is_waiting.tolist()) == ([50], [True])
    assert [len(part) for part in samples.of_process(9)] == [0, 0]
    assert len(StateSamples.of(set(), [], []).pid) == 0
