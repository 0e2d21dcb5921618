"""The process tree from planted /proc files and from real children."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from trainprof.sampling.process_tree import (
    IDLE_INTERVAL_NS,
    OUTSIDERS_INTERVAL_NS,
    PSS_INTERVAL_NS,
    ProcessTree,
    ReadingWatch,
    parse_stat,
)

MB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def pids(sample):
    return sorted(process["pid"] for process in sample["processes"])


@pytest.fixture
def tree(fake_proc, fake_time):
    return ProcessTree(100, fake_proc.root, fake_time.now_ns, fake_time.now_ns)


def test_one_process_field_by_field(fake_proc, tree):
    fake_proc.process(
        100, 1, name="a (b) c)", user_s=1.5, system_s=0.5, reaped_s=0.25, rss_pages=7, threads=3
    )
    assert tree.sample() == {
        "processes": [
            {
                "pid": 100,
                "ppid": 1,
                "started_ns": 5000 * 10_000_000,
                "name": "a (b) c)",
                "state": "S",
                "user_ns": 1_500_000_000,
                "system_ns": 500_000_000,
                "reaped_ns": 250_000_000,
                "rss_bytes": 7 * PAGE_BYTES,
                "rss_without_files_bytes": 410 * 1024,
                "threads": 3,
                "minor_faults": 11,
                "major_faults": 13,
                "voluntary_switches": 21,
                "involuntary_switches": 22,
                "read_bytes": 31,
                "write_bytes": 32,
                "pss_bytes": 7 * 1024,
                "private_bytes": 3 * 1024,
            }
        ]
    }


def test_descendants_are_found_whatever_the_order_of_pids(fake_proc, tree):
    fake_proc.process(1, 0)
    fake_proc.process(100, 1)
    fake_proc.process(90, 100)  # pids have wrapped around
    fake_proc.process(80, 90)
    fake_proc.process(70, 1)
    fake_proc.process(60, 70)
    assert pids(tree.sample()) == [80, 90, 100]
    fake_proc.process(110, 80)
    assert pids(tree.sample()) == [80, 90, 100, 110]


def test_an_orphan_stays_in_the_tree(fake_proc, tree):
    fake_proc.process(100, 1)
    fake_proc.process(101, 100)
    fake_proc.process(102, 101)
    tree.sample()
    fake_proc.end(101)
    fake_proc.process(102, 1)
    assert pids(tree.sample()) == [100, 102]
    fake_proc.end(100)
    assert pids(tree.sample()) == [102]
    fake_proc.process(102, 0, state="X", threads=0)  # it is being removed
    assert tree.sample() is None


def test_a_pid_given_to_another_process_leaves_the_tree(fake_proc, fake_time, tree):
    fake_proc.process(100, 1)
    fake_proc.process(101, 100)
    tree.sample()
    fake_proc.process(101, 1, started_ticks=9000)
    assert pids(tree.sample()) == [100]
    fake_proc.process(101, 100, started_ticks=9500)  # and a child gets it after a while
    fake_time.ns += OUTSIDERS_INTERVAL_NS
    assert pids(tree.sample()) == [100, 101]
    fake_proc.process(100, 1, started_ticks=9001)
    assert pids(tree.sample()) == [101]


def test_what_the_kernel_does_not_show_is_left_out(fake_proc, tree):
    fake_proc.process(100, 1)
    fake_proc.write("proc/100/status", "Name:\told\nVmRSS:\t 500 kB\n")
    assert "rss_without_files_bytes" not in tree.sample()["processes"][0]
    for name in ("status", "io", "smaps_rollup"):
        (fake_proc.root / "proc" / "100" / name).unlink()
    (process,) = tree.sample()["processes"]
    assert process["rss_bytes"] == 100 * PAGE_BYTES
    assert not process.keys() & {"voluntary_switches", "read_bytes", "pss_bytes"}


def test_pss_is_read_seldom(fake_proc, fake_time, tree):
    fake_proc.process(100, 1)

    def has_pss():
        return "pss_bytes" in tree.sample()["processes"][0]

    assert has_pss()
    fake_time.ns += PSS_INTERVAL_NS - 1
    assert not has_pss()
    fake_time.ns += 1
    fake_time.step_ns = 100_000_000  # every look at the clock: reading takes 100 ms
    assert has_pss()
    fake_time.step_ns = 0
    fake_time.ns += PSS_INTERVAL_NS
    assert not has_pss()
    fake_time.ns += 500 * 100_000_000
    assert has_pss()


def test_a_newcomer_is_measured_at_its_second_sample(fake_proc, fake_time, tree):
    def measured():
        return [x["pid"] for x in tree.sample()["processes"] if "private_bytes" in x]

    fake_proc.process(100, 1)
    assert measured() == [100]
    fake_proc.process(101, 100)
    assert [measured() for _ in range(3)] == [[], [101], []]
    # What newcomers take puts the next reading off, and so many of them are not measured.
    fake_time.step_ns = 70_000_000
    fake_proc.process(102, 100)
    assert [measured() for _ in range(2)] == [[], [102]]
    fake_proc.process(103, 100)
    assert [measured() for _ in range(3)] == [[], [103], []]
    fake_proc.process(104, 100)
    assert [measured() for _ in range(2)] == [[], []]


@pytest.mark.parametrize("text", [b"", b"100 (a", b"100 (a) S 1 2", b"100 (a) S x y z"])
def test_a_damaged_stat_is_no_process(text):
    assert parse_stat(text, 1, 1) is None


ALLOCATING_PARENT = f"""
import subprocess, sys
source = "x = bytearray({64 * MB}); print('up', flush=True); import sys; sys.stdin.read()"
child = subprocess.Popen(
    [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_a_real_childs_memory_is_seen():
    with subprocess.Popen(
        [sys.executable, "-c", ALLOCATING_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        child_pid = int(parent.stdout.readline())
        sample = ProcessTree(parent.pid).sample()
        assert pids(sample) == sorted([parent.pid, child_pid])
        by_pid = {process["pid"]: process for process in sample["processes"]}
        assert 64 * MB <= by_pid[child_pid]["rss_bytes"] < 128 * MB
        assert by_pid[parent.pid]["rss_bytes"] < 64 * MB
        assert by_pid[child_pid]["ppid"] == parent.pid
        assert by_pid[child_pid].get("pss_bytes", 64 * MB) >= 64 * MB


MS = 1_000_000
READ = 1 << 16


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
    watch.choose([entry(10, read_bytes=READ), entry(11, read_bytes=0), entry(12)])
    assert watch.sample() == {"states": {"10": "D"}}
    later = [entry(10, read_bytes=2 * READ - 1), entry(11, read_bytes=READ)]
    later.append(entry(12, major_faults=4))
    watch.choose([*later, entry(13, read_bytes=READ)])  # which is gone
    assert watch.sample() == {"states": {"11": "S", "12": "R"}}
    watch.choose(later)
    assert watch.sample() is None
    watch.choose([entry(10, started_ns=6, read_bytes=READ)])  # another process
    assert watch.sample() == {"states": {"10": "D"}}


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
    watch.choose([entry(10, read_bytes=READ)])
    assert watch.sample() == {"states": {"10": seen}}


def test_looks_keep_their_pace_and_do_not_beat(watch):
    """However long a step is, looks at it fall into all of its parts alike."""
    assert watch.pause_ns(40 * MS) == IDLE_INTERVAL_NS
    assert watch.pause_ns(IDLE_INTERVAL_NS * 8) == IDLE_INTERVAL_NS * 8
    watch.choose([entry(10, read_bytes=READ)])
    pauses = [watch.pause_ns(40 * MS) for _ in range(2000)]
    assert np.mean(pauses) == pytest.approx(40 * MS, rel=0.01)
    assert min(pauses) >= 20 * MS
    assert max(pauses) <= 60 * MS
    for step_ns in (20 * MS, 40 * MS, 80 * MS, 100 * MS):
        met = np.histogram(np.cumsum(pauses) % step_ns, bins=10, range=(0, step_ns))[0]
        assert met.min() > 140
        assert met.max() < 260
