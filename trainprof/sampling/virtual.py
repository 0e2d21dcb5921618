"""Whether the machine is a virtual one, whose cores others may slow out of its sight."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from trainprof.sampling.cores import FILESYSTEM_ROOT
from trainprof.sampling.procfs import first_int, read_bytes, read_text

_DMI: Final = "sys/class/dmi/id"
_DEVICE_TREE: Final = "proc/device-tree"
_DMI_NAMES: Final = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
# As systemd-detect-virt knows hypervisors (systemd, src/basic/virt.c), and clouds beside.
_HYPERVISORS: Final = re.compile(
    r"KVM|QEMU|Amazon EC2|Google Compute Engine|Microsoft Corporation Virtual Machine|Hyper-V"
    r"|VMware|VMW|VirtualBox|innotek|Xen|Bochs|Parallels|BHYVE|OpenStack|KubeVirt|Firecracker"
    r"|Apple Virtualization|Alibaba Cloud|Tencent Cloud|Huawei Cloud|vServer|Virtual Machine"
)
# Amazon's machines that are let whole, such as c7g.metal.
_LET_WHOLE: Final = re.compile(r"Amazon EC2.*\.metal")
# SMBIOS (DSP0134, 7.4.1): 1 is "other" and 2 "unknown", by which hypervisors go.
_UNKNOWN_CHASSIS: Final = 2
# What boards are called that no factory makes.
_MADE_UP_BOARDS: Final = (b"linux,dummy-virt", b"qemu,", b"riscv-virtio", b"ibm,pseries")
_QEMU_NODE: Final = "fw-cfg"


def is_virtual(root: Path = FILESYSTEM_ROOT) -> bool | None:
    """Tells whether the machine is a virtual one; None where nothing does, as in many containers.

    Args:
        root: Where `/proc` and `/sys` are looked up.
    """
    flags = re.search(
        rb"^flags\s*:(.*)$", read_bytes(str(root / "proc/cpuinfo")) or b"", re.MULTILINE
    )
    if flags is not None:  # of x86 alone; other processors do not tell
        return b"hypervisor" in flags[1].split()
    if (read_text(str(root / "sys/hypervisor/type")) or "").strip():
        return True
    told = _by_firmware(root)
    return _by_device_tree(root) if told is None else told


def _by_firmware(root: Path) -> bool | None:
    names = [(read_text(str(root / _DMI / name)) or "").strip() for name in _DMI_NAMES]
    told = " ".join(names)
    if _HYPERVISORS.search(told):
        return _LET_WHOLE.search(told) is None
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
    if any(board in boards for board in _MADE_UP_BOARDS):
        return True
    # A board that has a name of its own.
    return False if boards and read_bytes(str(tree / "model")) else None
