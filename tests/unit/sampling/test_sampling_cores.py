"""Quotas and limits from fake cgroup trees."""

from __future__ import annotations

import os

import pytest

from trainprof.sampling.cores import (
    core_numbers,
    core_of,
    cpu_pressure_file,
    memory_limit_bytes,
    out_of_memory_kills,
    physical_cores,
    throttle_file,
    usable_cores,
)

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def v1_mount(controllers, point, shown="/"):
    return f"32 31 0:29 {shown} {point} rw,relatime - cgroup cgroup rw,{controllers}\n"


def test_without_cgroups_the_affinity_mask_counts(fake_proc):
    assert usable_cores(fake_proc.root, affinity=6) == 6.0
    assert memory_limit_bytes(fake_proc.root) is None
    assert out_of_memory_kills(fake_proc.root) is None


def test_this_machine_has_cores():
    assert 0 < usable_cores() <= (os.cpu_count() or 1)


def test_v2_quota_may_stand_above_our_cgroup(fake_proc):
    fake_proc.write("proc/self/cgroup", "0::/job/step\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    fake_proc.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    fake_proc.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
    assert usable_cores(fake_proc.root, affinity=8) == 1.5
    assert usable_cores(fake_proc.root, affinity=1) == 1.0


def test_v2_memory_limit_is_the_smallest_level(fake_proc):
    fake_proc.write("proc/self/cgroup", "0::/job/step\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    fake_proc.write("sys/fs/cgroup/job/memory.max", "4096\n")
    fake_proc.write("sys/fs/cgroup/job/step/memory.max", "max\n")
    assert memory_limit_bytes(fake_proc.root) == 4096
    fake_proc.write("sys/fs/cgroup/job/step/memory.max", "1024\n")
    assert memory_limit_bytes(fake_proc.root) == 1024


def test_v2_out_of_memory_kills_are_our_own_cgroups(fake_proc):
    fake_proc.write("proc/self/cgroup", "0::/job/step\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    fake_proc.write("sys/fs/cgroup/job/memory.events", "oom 9\noom_kill 9\n")
    fake_proc.write(
        "sys/fs/cgroup/job/step/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"
    )
    assert out_of_memory_kills(fake_proc.root) == 2


def test_v1_quota_limit_and_kills(fake_proc):
    fake_proc.write("proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    fake_proc.write(
        "proc/self/mountinfo",
        v1_mount("memory", "/sys/fs/cgroup/memory") + v1_mount("cpu,cpuacct", "/sys/fs/cgroup/cpu"),
    )
    fake_proc.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    fake_proc.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    fake_proc.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n")
    fake_proc.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    fake_proc.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    fake_proc.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8192\n")
    fake_proc.write(
        "sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    assert usable_cores(fake_proc.root, affinity=4) == 2.5
    assert memory_limit_bytes(fake_proc.root) == 8192
    assert out_of_memory_kills(fake_proc.root) == 5


def test_v1_no_limit_is_none(fake_proc):
    fake_proc.write("proc/self/cgroup", "4:memory:/\n")
    fake_proc.write("proc/self/mountinfo", v1_mount("memory", "/cg"))
    fake_proc.write("cg/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit_bytes(fake_proc.root) is None


@pytest.mark.parametrize("path", ["/docker/abc", "/elsewhere/entirely", "/../../other"])
def test_a_container_sees_its_own_part_at_the_mount_point(fake_proc, path):
    fake_proc.write("proc/self/cgroup", f"2:cpu:{path}\n")
    fake_proc.write("proc/self/mountinfo", v1_mount("cpu", "/cg/cpu", shown="/docker/abc"))
    fake_proc.write("cg/cpu/cpu.cfs_quota_us", "50000\n")
    fake_proc.write("cg/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(fake_proc.root, affinity=4) == 0.5


@pytest.mark.parametrize("damaged", ["", "max", "x y", "-1 0", "100000", "100000 0"])
def test_a_damaged_quota_is_no_quota(fake_proc, damaged):
    fake_proc.write("proc/self/cgroup", "0::/\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT + "damaged\n - \n")
    fake_proc.write("sys/fs/cgroup/cpu.max", damaged)
    assert usable_cores(fake_proc.root, affinity=3) == 3.0


def test_throttling_is_told_by_the_cgroup_with_the_smallest_quota(fake_proc):
    fake_proc.write("proc/self/cgroup", "0::/pod/container\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    assert throttle_file(fake_proc.root) is None
    for quota, group in (("200000 100000", "pod"), ("max 100000", "pod/container")):
        fake_proc.write(f"sys/fs/cgroup/{group}/cpu.max", f"{quota}\n")
    root = f"{fake_proc.root}/sys/fs/cgroup"
    assert throttle_file(fake_proc.root) == f"{root}/pod/cpu.stat"
    fake_proc.write("sys/fs/cgroup/pod/container/cpu.max", "200000 100000\n")
    assert throttle_file(fake_proc.root) == f"{root}/pod/container/cpu.stat"
    fake_proc.write("sys/fs/cgroup/pod/container/cpu.max", "300000 100000\n")
    assert throttle_file(fake_proc.root) == f"{root}/pod/cpu.stat"


def test_throttling_is_told_in_v1_too(fake_proc):
    fake_proc.write("proc/self/cgroup", "2:cpu,cpuacct:/job\n")
    fake_proc.write("proc/self/mountinfo", v1_mount("cpu,cpuacct", "/cg/cpu"))
    fake_proc.write("cg/cpu/job/cpu.cfs_quota_us", "250000\n")
    fake_proc.write("cg/cpu/job/cpu.cfs_period_us", "100000\n")
    assert throttle_file(fake_proc.root) == f"{fake_proc.root}/cg/cpu/job/cpu.stat"


def test_pressure_on_the_cpu_is_told_by_our_own_cgroup(fake_proc):
    fake_proc.write("proc/self/cgroup", "0::/pod/container\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    fake_proc.write("sys/fs/cgroup/pod/cpu.pressure", "some total=9\n")
    assert cpu_pressure_file(fake_proc.root) is None  # the pod's others are none of ours
    fake_proc.write("sys/fs/cgroup/pod/container/cpu.pressure", "some total=5\n")
    own = f"{fake_proc.root}/sys/fs/cgroup/pod/container/cpu.pressure"
    assert cpu_pressure_file(fake_proc.root) == own


def test_v1_tells_no_pressure(fake_proc):
    fake_proc.write("proc/self/cgroup", "2:cpu,cpuacct:/job\n")
    fake_proc.write("proc/self/mountinfo", v1_mount("cpu,cpuacct", "/cg/cpu"))
    fake_proc.write("cg/cpu/job/cpu.pressure", "some total=5\n")
    assert cpu_pressure_file(fake_proc.root) is None


def plant_siblings(fake_proc, *cores):
    """Plants a machine's topology: of each core, its hyper-threads."""
    for core in cores:
        for processor in core:
            path = f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            fake_proc.write(path, ",".join(map(str, core)) + "\n")


def test_hyper_threads_of_a_core_count_once(fake_proc):
    plant_siblings(fake_proc, (0, 4), (1, 5), (2, 6), (3, 7))
    assert usable_cores(fake_proc.root, affinity=8) == 8.0
    assert physical_cores(fake_proc.root, affinity=range(8)) == 4.0
    assert physical_cores(fake_proc.root, affinity=(0, 1, 4, 5)) == 2.0
    assert physical_cores(fake_proc.root, affinity=(0, 1, 2, 3)) == 4.0
    assert physical_cores(fake_proc.root, affinity=(3, 7)) == 1.0


def test_processors_are_told_by_their_cores(fake_proc):
    plant_siblings(fake_proc, (0, 4), (1, 5), (2, 6), (3, 7))
    assert core_of(fake_proc.root, numbers=range(8)) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert core_of(fake_proc.root, numbers=[2, 6, 7]) == [0, 0, 1]
    assert core_of(fake_proc.root, numbers=[7, 8]) is None
    assert core_of(fake_proc.root, numbers=[]) is None


def test_this_machines_processors_have_cores_or_are_not_known():
    found, numbers = core_of(), core_numbers()
    assert found is None or (numbers is not None and len(found) == len(numbers))


def test_a_quota_caps_cores_too(fake_proc):
    plant_siblings(fake_proc, (0, 4), (1, 5), (2, 6), (3, 7))
    fake_proc.write("proc/self/cgroup", "0::/job\n")
    fake_proc.write("proc/self/mountinfo", V2_MOUNT)
    fake_proc.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    assert physical_cores(fake_proc.root, affinity=range(8)) == 1.5


def test_cores_by_their_place_where_siblings_are_not_listed(fake_proc):
    for processor, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 0)]):
        topology = f"sys/devices/system/cpu/cpu{processor}/topology"
        fake_proc.write(f"{topology}/physical_package_id", f"{package}\n")
        fake_proc.write(f"{topology}/core_id", f"{core}\n")
    assert physical_cores(fake_proc.root, affinity=range(4)) == 3.0


def test_cores_that_the_kernel_does_not_tell_are_not_known(fake_proc):
    assert physical_cores(fake_proc.root, affinity=range(4)) is None
    plant_siblings(fake_proc, (0, 2))
    assert physical_cores(fake_proc.root, affinity=(0, 1, 2)) is None
    topology = "sys/devices/system/cpu/cpu1/topology"
    fake_proc.write(f"{topology}/physical_package_id", "-1\n")
    fake_proc.write(f"{topology}/core_id", "0\n")
    assert physical_cores(fake_proc.root, affinity=(0, 1, 2)) is None


def test_this_machine_has_no_more_cores_than_hyper_threads():
    found = physical_cores()
    assert found is None or 0 < found <= usable_cores()
