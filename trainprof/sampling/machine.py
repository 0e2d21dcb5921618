"""The cores and memory that this process may use, and whether the machine is virtual.

Reads cgroup v1, v2 and both mixed; a limit may be set on any cgroup above ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from trainprof.sampling.procfs import first_int, labelled_int, read_bytes, read_text

FILESYSTEM_ROOT: Final = Path("/")

# cgroup v1 writes "no limit" as the largest page-aligned int64.
UNLIMITED_BYTES: Final = 1 << 60
# Used if a kernel does not list the hyper-threads of a core.
_PLACE_OF_CORE: Final = ("physical_package_id", "core_id")

_DMI: Final = "sys/class/dmi/id"
_DEVICE_TREE: Final = "proc/device-tree"
_DMI_NAMES: Final = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
# Hypervisors as in systemd-detect-virt (systemd, src/basic/virt.c), and clouds.
_HYPERVISORS: Final = re.compile(
    r"KVM|QEMU|Amazon EC2|Google Compute Engine|Microsoft Corporation Virtual Machine|Hyper-V"
    r"|VMware|VMW|VirtualBox|innotek|Xen|Bochs|Parallels|BHYVE|OpenStack|KubeVirt|Firecracker"
    r"|Apple Virtualization|Alibaba Cloud|Tencent Cloud|Huawei Cloud|vServer|Virtual Machine"
)
# Amazon's bare-metal machines, such as c7g.metal.
_BARE_METAL: Final = re.compile(r"Amazon EC2.*\.metal")
# SMBIOS (DSP0134, 7.4.1): 1 is "other", 2 "unknown"; hypervisors report these.
_UNKNOWN_CHASSIS: Final = 2
# Boards of virtual machines.
_VIRTUAL_BOARDS: Final = (b"linux,dummy-virt", b"qemu,", b"riscv-virtio", b"ibm,pseries")
_QEMU_NODE: Final = "fw-cfg"


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted cgroup hierarchy; the mount point shows the part below `root`."""

    version: int
    controllers: frozenset[str]
    root: str
    point: str


def usable_cores(root: Path = FILESYSTEM_ROOT, affinity: int | None = None) -> float:
    """Returns the cores (> 0) that this process and its children can use: affinity and quota."""
    cores = float(len(os.sched_getaffinity(0)) if affinity is None else affinity)
    return min([cores, *(quota for quota, _ in _quotas(root))])


def core_numbers() -> list[int]:
    """Returns the numbers of the logical CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def core_of(root: Path = FILESYSTEM_ROOT, numbers: Sequence[int] | None = None) -> list[int] | None:
    """Returns the physical core, from 0, of each logical CPU in `core_numbers`; None if unknown."""
    processors = core_numbers() if numbers is None else numbers
    cores = [_core_of(root, processor) for processor in processors]
    if not cores or None in cores:
        return None
    distinct = list(dict.fromkeys(cores))
    return [distinct.index(place) for place in cores]


def physical_cores(
    root: Path = FILESYSTEM_ROOT, affinity: Collection[int] | None = None
) -> float | None:
    """Returns `usable_cores` with a core's hyper-threads counted once; None if unknown."""
    processors = os.sched_getaffinity(0) if affinity is None else affinity
    cores = {_core_of(root, processor) for processor in processors}
    if not cores or None in cores:
        return None
    return min([float(len(cores)), *(quota for quota, _ in _quotas(root))])


def throttle_file(root: Path = FILESYSTEM_ROOT) -> str | None:
    """Returns the cpu.stat of the cgroup with the smallest CPU quota, None without a quota."""
    quotas = _quotas(root)
    return f"{min(quotas, key=lambda quota: quota[0])[1]}/cpu.stat" if quotas else None


def cpu_pressure_file(root: Path = FILESYSTEM_ROOT) -> str | None:
    """Returns the cpu.pressure of our cgroup; None without one, as for v1 and the root."""
    for version, directories in _hierarchies(root, "cpu"):
        file = f"{directories[0]}/cpu.pressure"
        # With psi=0 the file exists but cannot be read.
        if version == 2 and read_bytes(file):
            return file
    return None


def memory_limit_bytes(root: Path = FILESYSTEM_ROOT) -> int | None:
    """Returns the smallest cgroup memory limit (ours and above) in bytes, None without one."""
    limits = []
    for version, directory in _levels(root, "memory"):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        limit = first_int(read_text(f"{directory}/{name}"))
        if limit is not None and 0 < limit < UNLIMITED_BYTES:
            limits.append(limit)
    return min(limits, default=None)


def out_of_memory_kills(root: Path = FILESYSTEM_ROOT) -> int | None:
    """Returns the number of processes of our cgroup that the OOM killer has killed."""
    counts = []
    for version, directories in _hierarchies(root, "memory"):
        name = "memory.events" if version == 2 else "memory.oom_control"
        content = read_bytes(f"{directories[0]}/{name}")
        count = None if content is None else labelled_int(content, b"oom_kill ")
        if count is not None:
            counts.append(count)
    return max(counts, default=None)


def _core_of(root: Path, processor: int) -> str | None:
    """Returns a key shared by exactly the hyper-threads of a logical CPU's core."""
    topology = f"{root}/sys/devices/system/cpu/cpu{processor}/topology"
    siblings = (read_text(f"{topology}/thread_siblings_list") or "").strip()
    if siblings:
        return siblings
    # -1: unknown to the kernel.
    numbers = [first_int(read_text(f"{topology}/{name}")) for name in _PLACE_OF_CORE]
    is_known = all(number is not None and number >= 0 for number in numbers)
    return " ".join(map(str, numbers)) if is_known else None


def _quotas(root: Path) -> list[tuple[float, str]]:
    """Returns (quota in cores, directory) of each cgroup with a quota, innermost first."""
    quotas = []
    for version, directory in _levels(root, "cpu"):
        quota = _quota(version, directory)
        if quota is not None:
            quotas.append((quota, directory))
    return quotas


def _quota(version: int, directory: str) -> float | None:
    if version == 2:
        words = (read_text(f"{directory}/cpu.max") or "").split()
        quota_us, period_us = map(first_int, words) if len(words) == 2 else (None, None)
    else:
        quota_us = first_int(read_text(f"{directory}/cpu.cfs_quota_us"))
        period_us = first_int(read_text(f"{directory}/cpu.cfs_period_us"))
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:
        return None
    return quota_us / period_us


def _levels(root: Path, controller: str) -> list[tuple[int, str]]:
    """Returns (cgroup version, directory) of our cgroup and all above it."""
    return [
        (version, directory)
        for version, directories in _hierarchies(root, controller)
        for directory in directories
    ]


def _hierarchies(root: Path, controller: str) -> list[tuple[int, list[str]]]:
    """Returns (cgroup version, directories from our cgroup upwards) per hierarchy."""
    hierarchies = []
    mounts = _mounts(root)
    for line in (read_text(f"{root}/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        version = 2 if number == "0" and not names else 1
        if version == 1 and controller not in names.split(","):
            continue
        fitting = [
            mount
            for mount in mounts
            if mount.version == version and (version == 2 or controller in mount.controllers)
        ]
        hierarchies += [(version, _directories(root, mount, path)) for mount in fitting[:1]]
    return hierarchies


def _mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in (read_text(f"{root}/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, filesystem = before.split(), after.split()
        if len(fields) < 5 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if filesystem[0] == "cgroup2" else 1
        mounts.append(_Mount(version, frozenset(filesystem[2].split(",")), fields[3], fields[4]))
    return mounts


def _directories(root: Path, mount: _Mount, path: str) -> list[str]:
    """Returns the directories of cgroup `path` and those above it, innermost first.

    A path outside the mount (of a parent namespace) yields the mount point.
    """
    point = str(root).rstrip("/") + mount.point
    try:
        inside = PurePosixPath(path).relative_to(mount.root)
    except ValueError:
        return [point]
    if ".." in inside.parts:
        return [point]
    levels = [inside, *inside.parents] if inside.parts else [inside]
    return [f"{point}/{level}" if level.parts else point for level in levels]


def is_virtual(root: Path = FILESYSTEM_ROOT) -> bool | None:
    """Returns whether the machine is virtual; None if unknown, as in many containers."""
    cpuinfo = read_bytes(str(root / "proc/cpuinfo")) or b""
    flags = re.search(rb"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is not None:  # x86 only
        return b"hypervisor" in flags[1].split()
    if (read_text(str(root / "sys/hypervisor/type")) or "").strip():
        return True
    by_firmware = _by_firmware(root)
    return _by_device_tree(root) if by_firmware is None else by_firmware


def _by_firmware(root: Path) -> bool | None:
    names = [(read_text(str(root / _DMI / name)) or "").strip() for name in _DMI_NAMES]
    firmware = " ".join(names)
    if _HYPERVISORS.search(firmware):
        return _BARE_METAL.search(firmware) is None
    chassis = first_int(read_text(str(root / _DMI / "chassis_type")))
    is_real = chassis is not None and chassis > _UNKNOWN_CHASSIS
    return False if names[0] and is_real else None


def _by_device_tree(root: Path) -> bool | None:
    tree = root / _DEVICE_TREE
    try:
        nodes = os.listdir(tree)
    except OSError:
        return None
    boards = read_bytes(str(tree / "compatible")) or b""
    if "hypervisor" in nodes or any(node.startswith(_QEMU_NODE) for node in nodes):
        return True
    if any(board in boards for board in _VIRTUAL_BOARDS):
        return True
    # A named board is a physical one.
    return False if boards and read_bytes(str(tree / "model")) else None
