"""What tells a virtual machine, from planted files of /proc and /sys."""

from __future__ import annotations

import pytest

from trainprof.sampling.machine import is_virtual

ARM = "processor\t: 0\nFeatures\t: fp asimd cpuid\nCPU implementer\t: 0x41\n"
RACK = "23"
OTHER = "1"


def of_firmware(fake_proc, vendor, product, chassis):
    fake_proc.write("proc/cpuinfo", ARM)
    for name, told in (("sys_vendor", vendor), ("product_name", product)):
        fake_proc.write(f"sys/class/dmi/id/{name}", f"{told}\n")
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
    of_firmware(fake_proc, "QEMU", "KVM Virtual Machine", OTHER)
    fake_proc.write("proc/cpuinfo", "flags\t\t: fpu lm\n")  # who has them needs nothing else
    assert is_virtual(fake_proc.root) is False


@pytest.mark.parametrize("cpuinfo", [None, ARM, "", "flags and features"])
def test_where_nothing_tells_it_is_not_known(fake_proc, cpuinfo):
    if cpuinfo is not None:
        fake_proc.write("proc/cpuinfo", cpuinfo)
    assert is_virtual(fake_proc.root) is None
    (fake_proc.root / "proc/device-tree").mkdir(parents=True)  # as a container hides it
    assert is_virtual(fake_proc.root) is None


@pytest.mark.parametrize(
    ("vendor", "product", "chassis", "expected"),
    [
        ("Amazon EC2", "c7g.4xlarge", OTHER, True),
        ("Amazon EC2", "c7g.metal", OTHER, False),
        ("Microsoft Corporation", "Virtual Machine", "3", True),
        ("Google", "Google Compute Engine", OTHER, True),
        ("QEMU", "KVM Virtual Machine", OTHER, True),
        ("Hetzner", "vServer", OTHER, True),
        ("Apple Inc.", "Apple Virtualization Generic Platform", OTHER, True),
        ("NVIDIA", "Grace Hopper GH200", RACK, False),
        ("Microsoft Corporation", "Surface Pro", "9", False),
        ("A cloud", "of its own", OTHER, None),
        ("A vendor", "of no known case", "", None),
        ("", "", RACK, None),
    ],
)
def test_firmware_tells_where_processors_do_not(fake_proc, vendor, product, chassis, expected):
    of_firmware(fake_proc, vendor, product, chassis)
    assert is_virtual(fake_proc.root) is expected


def test_xen_tells_by_its_own_file(fake_proc):
    of_firmware(fake_proc, "A vendor", "A server", RACK)
    fake_proc.write("sys/hypervisor/type", "xen\n")
    assert is_virtual(fake_proc.root) is True


@pytest.mark.parametrize(
    ("nodes", "files", "expected"),
    [
        ((), {"compatible": "linux,dummy-virt\0", "model": "linux,dummy-virt\0"}, True),
        (("hypervisor",), {"compatible": "acme,board\0", "model": "Board\0"}, True),
        (("fw-cfg@9020000",), {"compatible": "acme,board\0", "model": "Board\0"}, True),
        ((), {"compatible": "nvidia,p3701\0nvidia,tegra234\0", "model": "Jetson AGX\0"}, False),
        ((), {"compatible": "acme,board\0"}, None),
    ],
)
def test_boards_tell_in_their_device_tree(fake_proc, nodes, files, expected):
    of_tree(fake_proc, *nodes, **files)
    assert is_virtual(fake_proc.root) is expected


def test_this_machine_tells_or_does_not():
    assert is_virtual() in (True, False, None)
