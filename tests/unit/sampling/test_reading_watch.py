"""Who is looked at often, how often, and in which state, from planted /proc files."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.sampling.process_tree import IDLE_INTERVAL_NS, ReadingWatch

MS = 1_000_000


def entry(pid, started_ns=5, state="S", **counters):
    return {"pid": pid, "started_ns": started_ns, "state": state, **counters}


@pytest.fixture
def watch(fake_proc):
    return ReadingWatch(fake_proc.root)


def plant(fake_proc, pid, state, name="python"):
    fake_proc.write(f"proc/{pid}/task/{pid}/stat", f"{pid} ({name}) {state} 1 2 3")


def test_only_those_that_have_read_since_the_last_sample_are_looked_at(fake_proc, watch):
    for pid, state in ((10, "D"), (11, "S"), (12, "R")):
        plant(fake_proc, pid, state)
    assert watch.sample() is None
    watch.choose([entry(10, read_bytes=4096), entry(11, read_bytes=0), entry(12)])
    assert watch.sample() == {"states": {"10": "D"}}
    watch.choose([entry(10, read_bytes=4096), entry(11, read_bytes=1), entry(12, major_faults=1)])
    assert watch.sample() == {"states": {"11": "S", "12": "R"}}
    watch.choose([entry(10, read_bytes=4096), entry(11, read_bytes=1), entry(12, major_faults=1)])
    assert watch.sample() is None


def test_a_pid_that_is_given_out_again_is_another_process(fake_proc, watch):
    plant(fake_proc, 10, "R")
    watch.choose([entry(10, started_ns=5, read_bytes=9000)])
    watch.choose([entry(10, started_ns=6, read_bytes=9000)])
    assert watch.sample() == {"states": {"10": "R"}}


def test_names_of_processes_may_hold_anything(fake_proc, watch):
    plant(fake_proc, 10, "D", name="a) S (b")
    watch.choose([entry(10, read_bytes=1)])
    assert watch.sample() == {"states": {"10": "D"}}


def test_a_process_that_is_gone_is_left_out(fake_proc, watch):
    plant(fake_proc, 10, "R")
    fake_proc.write("proc/12/task/12/stat", "")
    watch.choose([entry(10, read_bytes=1), entry(11, read_bytes=1), entry(12, read_bytes=1)])
    assert watch.sample() == {"states": {"10": "R"}}
    watch.choose([])
    assert watch.sample() is None


@pytest.mark.parametrize(
    ("main", "others", "seen"),
    [("S", "SD", "D"), ("S", "SS", "S"), ("R", "SD", "R"), ("S", "D" + 12 * "S", "S")],
)
def test_a_thread_that_reads_for_the_main_one_counts_while_that_sleeps(
    fake_proc, watch, main, others, seen
):
    plant(fake_proc, 10, main)
    for number, state in enumerate(others):
        fake_proc.write(f"proc/10/task/{11 + number}/stat", f"{11 + number} (pool) {state} 1 2")
    watch.choose([entry(10, read_bytes=1)])
    assert watch.sample() == {"states": {"10": seen}}


def test_looks_keep_their_pace_and_do_not_beat(watch):
    """However long a step is, looks at it fall into all of its parts alike."""
    assert watch.pause_ns(40 * MS) == IDLE_INTERVAL_NS
    assert watch.pause_ns(IDLE_INTERVAL_NS * 8) == IDLE_INTERVAL_NS * 8
    watch.choose([entry(10, read_bytes=1)])
    pauses = [watch.pause_ns(40 * MS) for _ in range(2000)]
    assert np.mean(pauses) == pytest.approx(40 * MS, rel=0.01)
    assert min(pauses) >= 20 * MS
    assert max(pauses) <= 60 * MS
    for step_ns in (20 * MS, 40 * MS, 80 * MS, 100 * MS):
        met = np.histogram(np.cumsum(pauses) % step_ns, bins=10, range=(0, step_ns))[0]
        assert met.min() > 140
        assert met.max() < 260
