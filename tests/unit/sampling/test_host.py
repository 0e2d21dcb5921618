"""The machine's counters from planted /proc texts, and from this machine both ways."""

from __future__ import annotations

import os

import pytest

from trainprof.sampling.host import (
    HostReader,
    clock_rate,
    cpu_times,
    disk,
    memory,
    network,
    shared_memory,
    throttled,
)

TICK_NS = 10_000_000

STAT = b"""cpu  10 1 5 100 20 2 3 4 7 0
cpu0 6 1 3 50 10 1 2 2 7 0
cpu2 4 0 2 50 10 1 1 2 0 0
intr 99 0 0
ctxt 1234
btime 1
"""

DISKSTATS = b"""   7       0 loop0 9 0 900 0 9 0 900 0 0 0 0
 254       0 vda 7 5 100 3 3 4 200 6 0 2 1 3
 254       1 vda1 7 5 100 3 3 4 200 6 0 2 1 3
 259       0 nvme0n1 7 5 1000 3 3 4 2000 6 0 2 1 3
 259       1 nvme0n1p1 7 5 1000 3 3 4 2000 6 0 2 1 3
 259       2 nvme0n11 7 5 10 3 3 4 20 6 0 2 1 3
 253       0 dm-0 7 5 1000 3 3 4 2000 6 0 2 1 3
   9       0 md0 7 5 1000 3 3 4 2000 6 0 2 1 3
"""

NET_DEV = b"""Inter-|   Receive                  |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth0:  100 1 0 0 0 0 0 0  200 1 0 0 0 0 0 0
eth0.7:   40 1 0 0 0 0 0 0   50 1 0 0 0 0 0 0
docker0:  77 1 0 0 0 0 0 0   77 1 0 0 0 0 0 0
   ib0: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
"""


def test_cpu_times_are_in_ns_and_an_offline_core_is_none():
    sample = cpu_times(STAT, TICK_NS)
    assert sample["cpu"] == {
        "user_ns": 10 * TICK_NS,
        "nice_ns": 1 * TICK_NS,
        "system_ns": 5 * TICK_NS,
        "idle_ns": 100 * TICK_NS,
        "iowait_ns": 20 * TICK_NS,
        "irq_ns": 2 * TICK_NS,
        "softirq_ns": 3 * TICK_NS,
        "steal_ns": 4 * TICK_NS,
    }
    assert sample["cores_busy_ns"] == [15 * TICK_NS, None, 10 * TICK_NS]
    assert sample["context_switches"] == 1234


def test_memory_is_in_bytes():
    meminfo = b"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nSwapCached: 5 kB\n"
    meminfo += b"SwapTotal: 50 kB\nSwapFree: 20 kB\n"
    assert memory(meminfo) == {
        "memory_total_bytes": 1_024_000,
        "memory_available_bytes": 614_400,
        "swap_total_bytes": 51_200,
        "swap_used_bytes": 30_720,
    }


def test_shared_memory_is_that_of_its_file_system(tmp_path):
    whole = os.statvfs(tmp_path)
    shown = shared_memory(str(tmp_path))
    assert shown["shm_total_bytes"] == whole.f_blocks * whole.f_frsize
    assert 0 < shown["shm_used_bytes"] < shown["shm_total_bytes"]
    assert shared_memory(str(tmp_path / "missing")) == {}


def test_disks_are_counted_once():
    assert disk(DISKSTATS) == {
        "disk_read_bytes": (100 + 1000 + 10) * 512,
        "disk_write_bytes": (200 + 2000 + 20) * 512,
    }


def test_interfaces_are_counted_once_and_loopback_never():
    assert network(NET_DEV) == {"network_received_bytes": 1100, "network_sent_bytes": 2200}


@pytest.mark.parametrize("has_own", [True, False])
def test_who_waits_for_a_core_is_told_of_our_own_cgroup(fake_proc, has_own):
    mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    fake_proc.write("proc/self/cgroup", "0::/box\n")
    fake_proc.write("proc/self/mountinfo", mount)
    for name, total in (("cpu", 1000), ("memory", 7), ("io", 8)):
        fake_proc.write(f"proc/pressure/{name}", f"some avg10=0.00 total={total}\n")
    own = fake_proc.root / "sys/fs/cgroup/box/cpu.pressure"
    if has_own:
        fake_proc.write("sys/fs/cgroup/box/cpu.pressure", "some total=10\nfull total=2\n")
    host = HostReader(fake_proc.root)
    shown = {"some_us": 10, "full_us": 2} if has_own else {"some_us": 1000}
    others = {"memory": {"some_us": 7}, "io": {"some_us": 8}}
    assert host.sample()["pressure"] == {"cpu": shown, **others}
    if has_own:  # it does not go on with the machine's counter
        own.unlink()
        assert host.sample()["pressure"] == others


def test_what_a_quota_has_taken_and_the_mean_clock_rate_of_the_cores(tmp_path):
    assert throttled(b"usage_usec 5\nthrottled_usec 70\n") == {"throttled_us": 70}
    assert throttled(b"nr_throttled 1\nthrottled_time 70000\n") == {"throttled_us": 70}
    shown = b"cpu MHz\t\t: 2000.000\nflags\t: x\ncpu MHz\t\t: 3000.5\n"
    assert clock_rate(shown) == {"cpu_mhz": 2500.25}
    assert throttled(b"") == clock_rate(b"model name : none") == HostReader(tmp_path).sample() == {}
