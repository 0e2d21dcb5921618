"""Samples the whole machine: the kernel's counters since boot, without those it lacks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from trainprof.sampling.clock import NS_PER_S
from trainprof.sampling.machine import FILESYSTEM_ROOT, cpu_pressure_file, throttle_file
from trainprof.sampling.procfs import labelled_int, read_bytes

Sample = dict[str, Any]

SECTOR_BYTES: Final = 512  # unit of /proc/diskstats for every device
CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
IDLE_MODES: Final = frozenset({"idle", "iowait"})
# Samples between readings of clock rates, for which the kernel interrupts every core.
CLOCK_EVERY: Final = 20
PRESSURE_RESOURCES: Final = ("cpu", "memory", "io")

_CLOCK_RATE: Final = re.compile(rb"^cpu MHz\s*: (\d+(?:\.\d+)?)$", re.MULTILINE)
# Devices without traffic, or whose traffic another listed device carries.
_VIRTUAL_DISK: Final = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")
_VIRTUAL_INTERFACE: Final = re.compile(
    r"lo\d*$|ifb|dummy|veth|docker|br-|br\d|virbr|bond|team|tun|tap|wg|cni|flannel|cali|kube"
)


class HostReader:
    """Reads the machine's counters from /proc, in a tenth of psutil's time."""

    def __init__(self, root: Path = FILESYSTEM_ROOT) -> None:
        self._proc = str(root).rstrip("/") + "/proc"
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._throttle_file = throttle_file(root)
        # Chosen once: counters of two files have unrelated values.
        self._pressure_files = {x: f"{self._proc}/pressure/{x}" for x in PRESSURE_RESOURCES}
        own_cpu = cpu_pressure_file(root)
        if own_cpu is not None:
            self._pressure_files["cpu"] = own_cpu
        self._shared_memory = f"{str(root).rstrip('/')}/dev/shm"
        self._taken = 0

    def sample(self) -> Sample:
        sample: Sample = {}
        sample.update(cpu_times(self._read("stat"), self._tick_ns))
        sample.update(memory(self._read("meminfo")))
        sample.update(disk(self._read("diskstats")))
        sample.update(network(self._read("net/dev")))
        stalls = {name: stall(read_bytes(x) or b"") for name, x in self._pressure_files.items()}
        if any(stalls.values()):
            sample["pressure"] = {name: stalled for name, stalled in stalls.items() if stalled}
        sample.update(shared_memory(self._shared_memory))
        if self._throttle_file is not None:
            sample.update(throttled(read_bytes(self._throttle_file) or b""))
        if self._taken % CLOCK_EVERY == 0:
            sample.update(clock_rate(self._read("cpuinfo")))
        self._taken += 1
        return sample

    def _read(self, name: str) -> bytes:
        return read_bytes(f"{self._proc}/{name}") or b""


def cpu_times(stat: bytes, tick_ns: int) -> Sample:
    """Returns `cpu` {mode_ns}, `cores_busy_ns` and `context_switches` from /proc/stat.

    `cores_busy_ns` is by core number, None for an offline core.
    """
    sample: Sample = {}
    cores: dict[int, int] = {}
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):
            break
        label, *ticks = line.split()
        counts = zip(CPU_MODES, ticks, strict=False)
        modes = {f"{mode}_ns": int(count) * tick_ns for mode, count in counts}
        if label == b"cpu":
            sample["cpu"] = modes
        else:
            cores[int(label[3:])] = busy_ns(modes)
    if cores:
        sample["cores_busy_ns"] = [cores.get(core) for core in range(max(cores) + 1)]
    switches = labelled_int(stat, b"ctxt ")
    if switches is not None:
        sample["context_switches"] = switches
    return sample


def busy_ns(modes: dict[str, int]) -> int:
    """Returns the time in all modes but idle and iowait; stolen time counts as busy."""
    return sum(ns for mode, ns in modes.items() if mode.removesuffix("_ns") not in IDLE_MODES)


def throttled(cpu_stat: bytes) -> Sample:
    """Returns `throttled_us`: time for which a CPU quota has stopped the cgroup."""
    for name, unit in ((b"throttled_usec ", 1), (b"throttled_time ", 1000)):  # cgroup v2, v1
        time = labelled_int(cpu_stat, name)
        if time is not None:
            return {"throttled_us": time // unit}
    return {}


def clock_rate(cpuinfo: bytes) -> Sample:
    """Returns `cpu_mhz`, the mean clock rate of the cores; {} if not reported."""
    rates = [float(rate) for rate in _CLOCK_RATE.findall(cpuinfo)]
    return {"cpu_mhz": sum(rates) / len(rates)} if rates else {}


def memory(meminfo: bytes) -> Sample:
    """Returns memory and swap sizes in bytes from /proc/meminfo."""
    read = {
        label: labelled_int(meminfo, label + b":")
        for label in (b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree")
    }
    total_kb, free_kb = read[b"SwapTotal"], read[b"SwapFree"]
    swap_kb = None if total_kb is None or free_kb is None else total_kb - free_kb
    sizes_kb = {
        "memory_total_bytes": read[b"MemTotal"],
        "memory_available_bytes": read[b"MemAvailable"],
        "swap_total_bytes": None if swap_kb is None else total_kb,
        "swap_used_bytes": swap_kb,
    }
    return {name: size * 1024 for name, size in sizes_kb.items() if size is not None}


def shared_memory(directory: str) -> Sample:
    """Returns total and used bytes of the shared-memory file system (/dev/shm)."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return {}
    total, free = status.f_blocks * status.f_frsize, status.f_bfree * status.f_frsize
    return {"shm_total_bytes": total, "shm_used_bytes": total - free} if total else {}


def disk(diskstats: bytes) -> Sample:
    """Returns bytes read from and written to whole disks, without partitions and layers."""
    sectors: dict[str, tuple[int, int]] = {}
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) >= 10:
            sectors[fields[2].decode("utf-8", "replace")] = (int(fields[5]), int(fields[9]))
    whole = [sectors[name] for name in sectors if _is_whole_disk(name, sectors)]
    if not whole:
        return {}
    read, written = (sum(counts) * SECTOR_BYTES for counts in zip(*whole, strict=True))
    return {"disk_read_bytes": read, "disk_write_bytes": written}


def _is_whole_disk(name: str, listed: dict[str, tuple[int, int]]) -> bool:
    if _VIRTUAL_DISK.match(name):
        return False
    # sda1 is a part of sda, nvme0n1p1 of nvme0n1; nvme0n11 is another disk
    parent = name.rstrip("0123456789")
    if parent == name:
        return True
    if parent.endswith("p") and parent[-2:-1].isdigit():
        return parent[:-1] not in listed
    return parent not in listed


def network(net_dev: bytes) -> Sample:
    """Returns bytes received and sent by physical interfaces (no loopback, no bridges)."""
    counts: dict[str, tuple[int, int]] = {}
    for line in net_dev.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if len(fields) >= 9:
            counts[name.strip().decode("utf-8", "replace")] = (int(fields[0]), int(fields[8]))
    own = [counts[name] for name in counts if _is_own_traffic(name, counts)]
    if not own:
        return {}
    received, sent = map(sum, zip(*own, strict=True))
    return {"network_received_bytes": received, "network_sent_bytes": sent}


def _is_own_traffic(name: str, listed: dict[str, Any]) -> bool:
    # eth0.100 is a VLAN on eth0
    carrier, dot, _ = name.partition(".")
    return not _VIRTUAL_INTERFACE.match(name) and not (dot and carrier in listed)


def stall(pressure: bytes) -> dict[str, int]:
    """Returns `some_us` and `full_us`, the total stall times in a /proc/pressure text."""
    totals = {}
    for line in pressure.splitlines():
        label, *fields = line.split()
        for field in fields:
            if field.startswith(b"total="):
                totals[f"{label.decode('ascii', 'replace')}_us"] = int(field[6:])
    return totals
