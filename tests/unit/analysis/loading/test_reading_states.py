"""How long fetches waited for storage, from planted states of their processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fetch_tables import MS, table

from trainprof.analysis.loading import fetch_usage
from trainprof.analysis.loading.fetch_usage import MIN_STATES, StateSamples, with_sampled_reading
from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.machine.processes import Tick

FETCHES = 40


def fetches(**columns: Any) -> FetchTable:
    """Fetches of 10 ms, one each 20 ms, by worker 7, that have read."""
    plain = {"pid": 7, "loader": 1, "start_ns": np.arange(FETCHES) * 20 * MS, "read_bytes": 4096}
    return table(FETCHES, **{**plain, **columns})


def met(each: str, pid: int = 7, after: int = 0) -> StateSamples:
    """In each fetch a look for each letter, evenly; `after` so many ms after its start."""
    rows = [
        (pid, (20 * fetch + after) * MS + (place * 10 + 5) * MS // len(each), letter == "D")
        for fetch in range(FETCHES)
        for place, letter in enumerate(each)
    ]
    columns = np.array(rows, dtype=np.int64).T
    return StateSamples(columns[0], columns[1], columns[2] > 0)


def sampled(table: FetchTable, states: StateSamples, main_thread: int | None) -> FetchTable:
    return with_sampled_reading(table, lambda pids: states, main_thread)


def reading_ms(found: FetchTable) -> float:
    return float(np.nansum(found.reading_ns)) / MS


def test_the_share_of_looks_is_the_share_of_time():
    found = sampled(fetches(), met("DDDS"), 0)
    assert reading_ms(found) == pytest.approx(0.75 * FETCHES * 10)
    told = SimpleNamespace(**fetch_usage.usage_of(found))
    assert told.reading_s == pytest.approx(0.3)
    assert told.asleep_s == pytest.approx(0.1)


def test_it_is_no_more_than_was_neither_run_nor_waited_for_a_core():
    running = {"cpu_ns": 6 * MS, "process_cpu_ns": 6 * MS, "delay_ns": 1 * MS}
    found = sampled(fetches(**running), met("DDDR"), 0)
    assert reading_ms(found) == pytest.approx(FETCHES * 3)


def test_those_that_slept_longest_read_longest():
    wall = np.where(np.arange(FETCHES) % 2, 10 * MS, 2 * MS)
    found = sampled(fetches(wall_ns=wall), met("D"), 0)
    assert found.reading_ns[0] == pytest.approx(found.reading_ns[1] / 5)


def test_what_the_kernel_tells_is_left():
    told = fetches(reading_ns=3 * MS)
    assert sampled(told, met("D"), 0) is told


def test_fetches_without_a_byte_read_waited_for_something_else():
    nothing = fetches(read_bytes=0)
    assert np.isnan(sampled(nothing, met("D"), 0).reading_ns).all()
    half = np.where(np.arange(FETCHES) % 2, 4096, 0)
    found = sampled(fetches(read_bytes=half), met("DD"), 0)
    assert (found.reading_ns[::2] == 0).all()
    assert (found.reading_ns[1::2] == 10 * MS).all()


def test_pages_that_had_to_be_read_count_too():
    found = sampled(fetches(read_bytes=0, major_faults=2), met("D"), 0)
    assert reading_ms(found) == FETCHES * 10


def test_few_looks_tell_nothing():
    few = met("D")
    few = StateSamples(*(getattr(few, name)[: MIN_STATES - 1] for name in StateSamples.__slots__))
    assert np.isnan(sampled(fetches(), few, 0).reading_ns).all()


def test_looks_between_fetches_do_not_count():
    assert np.isnan(sampled(fetches(), met("D", after=10), 0).reading_ns).all()


def test_of_the_process_that_trains_only_its_main_thread_is_looked_at():
    here = fetches(worker=0, thread=2)
    assert reading_ms(sampled(here, met("D"), 2)) == FETCHES * 10
    for main in (0, None):
        assert np.isnan(sampled(here, met("D"), main).reading_ns).all()


def test_loaders_are_told_apart_and_a_loaders_workers_are_taken_together():
    pid = np.arange(FETCHES) % 2 + 7
    loader = np.where(np.arange(FETCHES) < FETCHES // 2, 1, 2)
    joined = [met("D", 7), met("S", 8)]
    states = StateSamples(
        *(np.concatenate([getattr(x, n) for x in joined]) for n in StateSamples.__slots__)
    )
    found = sampled(fetches(pid=pid), states, 0)
    assert reading_ms(found) == pytest.approx(FETCHES * 10 / 2)
    assert np.isnan(sampled(fetches(pid=pid, loader=loader), met("D", 7), 0).reading_ns).all()


def test_fetches_that_were_not_measured_stay_so():
    stands_for = np.where(np.arange(FETCHES) % 2, 2.0, 0.0)
    found = sampled(fetches(stands_for=stands_for), met("DDD"), 0)
    assert np.isnan(found.reading_ns[::2]).all()
    assert fetch_usage.usage_of(found)["reading_s"] == pytest.approx(FETCHES * 0.01)


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
    found = StateSamples.of({6, 7, 8, 9}, ticks, lines)
    t_ns, is_waiting = found.of_process(7)
    assert (t_ns.tolist(), is_waiting.tolist()) == ([30], [True])
    t_ns, is_waiting = found.of_process(8)
    assert (t_ns.tolist(), is_waiting.tolist()) == ([30, 40], [False, False])
    t_ns, is_waiting = found.of_process(6)  # of an older run
    assert (t_ns.tolist(), is_waiting.tolist()) == ([50], [True])
    assert [len(part) for part in found.of_process(9)] == [0, 0]
    assert len(StateSamples.of(set(), [], []).pid) == 0


@settings(deadline=None, max_examples=50)
@given(
    share=st.floats(0, 1),
    wall=st.lists(st.integers(0, 50), min_size=1, max_size=30),
    cpu=st.integers(0, 30),
)
def test_parts_stay_within_the_wall(share: float, wall: list[int], cpu: int):
    n = len(wall)
    taken = np.array(wall) * MS
    rows = table(
        n,
        pid=7,
        loader=1,
        start_ns=np.cumsum(taken) - taken,
        wall_ns=taken,
        cpu_ns=cpu * MS,
        process_cpu_ns=cpu * MS,
        read_bytes=4096,
    )
    t_ns = np.linspace(0, taken.sum(), 200).astype(np.int64)
    states = StateSamples(np.full(200, 7), t_ns, np.arange(200) < share * 200)
    told = SimpleNamespace(**fetch_usage.usage_of(sampled(rows, states, 0)))
    parts = [told.running_s, told.runnable_s, told.reading_s or 0.0, told.asleep_s]
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(part or 0.0 for part in parts) == pytest.approx(taken.sum() / 1e9)
