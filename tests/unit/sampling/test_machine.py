"""The machine from planted files: cores, quotas and limits, and whether it is a virtual one."""

from __future__ import annotations

import pytest

from trainprof.sampling.machine import (
    core_of,
    cpu_pressure_file,
    is_virtual,
    memory_limit_bytes,
    out_of_memory_kills,
    physical_cores,
    throttle_file,
    usable_cores,
)

V2_MOUNT = "30 23 0:26 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def v1_mount(controllers, shown="/"):
    point = f"/cg/{controllers.partition(',')[0]}"
    return f"32 31 0:29 {shown} {point} rw,relatime - cgroup cgroup rw,{controllers}\n"


def plant(fake_proc, own, mounts, **files):
    """Plants our cgroup, its mounts, and files below /cg, their names' slashes written as __."""
    fake_proc.write("proc/self/cgroup", own)
    fake_proc.write("proc/self/mountinfo", mounts)
    for name, text in files.items():
        *path, file = name.split("__")
        fake_proc.write("/".join(["cg", *path, file.replace("_", ".", 1)]), f"{text}\n")


def test_without_cgroups_the_affinity_mask_counts(fake_proc):
    assert usable_cores(fake_proc.root, affinity=6) == 6.0
    assert memory_limit_bytes(fake_proc.root) is None
    assert out_of_memory_kills(fake_proc.root) is None
    assert throttle_file(fake_proc.root) is None


def test_v2_limits_may_stand_at_any_level_and_the_smallest_counts(fake_proc):
    files = {"job__cpu_max": "150000 100000", "job__step__cpu_max": "max 100000"}
    files |= {"job__memory_max": "4096", "job__step__memory_max": "max"}
    kills = {"job__memory_events": "oom_kill 9", "job__step__memory_events": "oom 3\noom_kill 2"}
    plant(fake_proc, "0::/job/step\n", V2_MOUNT, **files, **kills)
    assert usable_cores(fake_proc.root, affinity=8) == 1.5
    assert usable_cores(fake_proc.root, affinity=1) == 1.0
    assert memory_limit_bytes(fake_proc.root) == 4096
    assert out_of_memory_kills(fake_proc.root) == 2  # our own cgroup's
    fake_proc.write("cg/job/step/memory.max", "1024\n")
    assert memory_limit_bytes(fake_proc.root) == 1024


def test_v1_quota_limit_and_kills(fake_proc):
    plant(
        fake_proc,
        "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
        v1_mount("memory") + v1_mount("cpu,cpuacct"),
        cpu__cpu_cfs_quota_us=-1,
        cpu__cpu_cfs_period_us=100000,
        cpu__job__cpu_cfs_quota_us=250000,
        cpu__job__cpu_cfs_period_us=100000,
        cpu__job__cpu_pressure="some total=5",
        memory__memory_limit_in_bytes=9223372036854771712,
        memory__job__memory_limit_in_bytes=8192,
        memory__job__memory_oom_control="oom_kill_disable 0\noom_kill 5",
    )
    assert usable_cores(fake_proc.root, affinity=4) == 2.5
    assert memory_limit_bytes(fake_proc.root) == 8192
    assert out_of_memory_kills(fake_proc.root) == 5
    assert throttle_file(fake_proc.root) == f"{fake_proc.root}/cg/cpu/job/cpu.stat"
    assert cpu_pressure_file(fake_proc.root) is None


@pytest.mark.parametrize("path", ["/docker/abc", "/elsewhere/entirely"])
def test_a_container_sees_its_own_part_at_the_mount_point(fake_proc, path):
    quota = {"cpu__cpu_cfs_quota_us": 50000, "cpu__cpu_cfs_period_us": 100000}
    plant(fake_proc, f"2:cpu:{path}\n", v1_mount("cpu", shown="/docker/abc"), **quota)
    assert usable_cores(fake_proc.root, affinity=4) == 0.5


@pytest.mark.parametrize("damaged", ["", "x y", "100000", "100000 0"])
def test_a_damaged_quota_is_no_quota(fake_proc, damaged):
    plant(fake_proc, "0::/\n", V2_MOUNT + "damaged\n - \n", cpu_max=damaged)
    assert usable_cores(fake_proc.root, affinity=3) == 3.0


@pytest.mark.parametrize(
    ("inner_quota", "group"),
    [("max 100000", "pod"), ("200000 100000", "pod/container"), ("300000 100000", "pod")],
)
def test_throttling_is_shown_by_the_cgroup_with_the_smallest_quota(fake_proc, inner_quota, group):
    quotas = {"pod__cpu_max": "200000 100000", "pod__container__cpu_max": inner_quota}
    plant(fake_proc, "0::/pod/container\n", V2_MOUNT, **quotas)
    assert throttle_file(fake_proc.root) == f"{fake_proc.root}/cg/{group}/cpu.stat"


def test_pressure_on_the_cpu_is_shown_by_our_own_cgroup(fake_proc):
    plant(fake_proc, "0::/pod/container\n", V2_MOUNT, pod__cpu_pressure="some total=9")
    assert cpu_pressure_file(fake_proc.root) is None  # the pod's others are none of ours
    fake_proc.write("cg/pod/container/cpu.pressure", "some total=5\n")
    assert cpu_pressure_file(fake_proc.root) == f"{fake_proc.root}/cg/pod/container/cpu.pressure"


@pytest.fixture
def hyper_threads(fake_proc):
    """A machine of four cores with two hyper-threads each."""
    for core in ((0, 4), (1, 5), (2, 6), (3, 7)):
        for processor in core:
            path = f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            fake_proc.write(path, ",".join(map(str, core)) + "\n")
    return fake_proc


@pytest.mark.parametrize(
    ("affinity", "cores"),
    [
        (range(8), [0, 1, 2, 3, 0, 1, 2, 3]),
        ((0, 1, 4, 5), [0, 1, 0, 1]),
        ((3, 7), [0, 0]),
        ((0, 8), None),
    ],
)
def test_hyper_threads_of_a_core_count_once(hyper_threads, affinity, cores):
    assert core_of(hyper_threads.root, numbers=affinity) == cores
    expected = None if cores is None else len(set(cores))
    assert physical_cores(hyper_threads.root, affinity=affinity) == expected
    plant(hyper_threads, "0::/job\n", V2_MOUNT, job__cpu_max="50000 100000")
    assert physical_cores(hyper_threads.root, affinity=affinity) == (expected and 0.5)


@pytest.mark.parametrize(("last_package", "cores"), [(1, 3.0), (-1, None)])
def test_cores_by_their_place_where_siblings_are_not_listed(fake_proc, last_package, cores):
    for processor, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (last_package, 0)]):
        topology = f"sys/devices/system/cpu/cpu{processor}/topology"
        fake_proc.write(f"{topology}/physical_package_id", f"{package}\n")
        fake_proc.write(f"{topology}/core_id", f"{core}\n")
    assert physical_cores(fake_proc.root, affinity=range(4)) == cores


ARM = "processor\t: 0\nFeatures\t: fp asimd cpuid\nCPU implementer\t: 0x41\n"
RACK = "23"
OTHER = "1"


def of_firmware(fake_proc, vendor, product, chassis):
    fake_proc.write("proc/cpuinfo", ARM)
    for name, text in (("sys_vendor", vendor), ("product_name", product)):
        fake_proc.write(f"sys/class/dmi/id/{name}", f"{text}\n")
    fake_proc.write("sys/class/dmi/id/chassis_type", f"{chassis}\n")


def of_tree(fake_proc, *nodes, **files):
    fake_proc.write("proc/cpuinfo", ARM)
    for node in nodes:
        (fake_proc.root / "proc/device-tree" / node).mkdir(parents=True)
    for name, text in files.items():
        fake_proc.write(f"proc/device-tree/{name}", text)


def test_x86_says_so_in_its_processors_flags(fake_proc):
    fake_proc.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor lm\n")
    assert is_virtual(fake_proc.root) is True
    fake_proc.write("proc/cpuinfo", "processor\t: 0\nmodel\t: hypervisor\nflags\t\t: fpu lm\n")
    assert is_virtual(fake_proc.root) is False


@pytest.mark.parametrize("cpuinfo", [ARM, "flags and features"])
def test_where_nothing_tells_it_is_not_known(fake_proc, cpuinfo):
    fake_proc.write("proc/cpuinfo", cpuinfo)
    assert is_virtual(fake_proc.root) is None
    (fake_proc.root / "proc/device-tree").mkdir(parents=True)  # as a container hides it
    assert is_virtual(fake_proc.root) is None
    fake_proc.write("sys/hypervisor/type", "xen\n")
    assert is_virtual(fake_proc.root) is True


@pytest.mark.parametrize(
    ("vendor", "product", "chassis", "expected"),
    [
        ("Amazon EC2", "c7g.4xlarge", OTHER, True),
        ("Amazon EC2", "c7g.metal", OTHER, False),
        ("Microsoft Corporation", "Virtual Machine", "3", True),
        ("QEMU", "KVM Virtual Machine", OTHER, True),
        ("NVIDIA", "Grace Hopper GH200", RACK, False),
        ("A cloud", "of its own", OTHER, None),
        ("", "", RACK, None),
    ],
)
def test_firmware_tells_where_processors_do_not(fake_proc, vendor, product, chassis, expected):
    of_firmware(fake_proc, vendor, product, chassis)
    assert is_virtual(fake_proc.root) is expected


@pytest.mark.parametrize(
    ("nodes", "files", "expected"),
    [
        ((), {"compatible": "linux,dummy-virt\0", "model": "linux,dummy-virt\0"}, True),
        (("fw-cfg@9020000",), {"compatible": "acme,board\0", "model": "Board\0"}, True),
        ((), {"compatible": "nvidia,p3701\0nvidia,tegra234\0", "model": "Jetson AGX\0"}, False),
        ((), {"compatible": "acme,board\0"}, None),
    ],
)
def test_boards_tell_in_their_device_tree(fake_proc, nodes, files, expected):
    of_tree(fake_proc, *nodes, **files)
    assert is_virtual(fake_proc.root) is expected
