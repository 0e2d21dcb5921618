"""The metrics of a GPU, each with the NVML calls that return it, converted to our units.

A metric's calls are tried in turn: drivers and versions of pynvml have different ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from trainprof.sampling.clock import NS_PER_S

Reading = Callable[[Any, Any], dict[str, Any]]


class Tier(Enum):
    """How often a metric is read: at every sample, or rarely because the call is slow."""

    EVERY_SAMPLE = "every sample"
    RARE = "rare"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `keys` are those that it adds to a device's entry.

    The first of `readings`, called with (nvml, handle), that the driver offers is used.
    """

    name: str
    tier: Tier
    keys: tuple[str, ...]
    readings: tuple[Reading, ...]


def _number(key: str, function: str, *, unit: float | None = None) -> Reading:
    """Returns a reading of one number, divided by `unit`."""

    def read(nvml: Any, handle: Any) -> dict[str, Any]:
        value = getattr(nvml, f"nvmlDeviceGet{function}")(handle)
        return {key: value if unit is None else value / unit}

    return read


def _utilization(nvml: Any, handle: Any) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_gpu_percent": rates.gpu}


def _memory(nvml: Any, handle: Any, *, is_old: bool) -> dict[str, Any]:
    """Reads used and total bytes; the old call counts the driver's reserve as used."""
    version = {} if is_old else {"version": nvml.nvmlMemory_v2}
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, **version)
    return {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}


def _temperature(nvml: Any, handle: Any, *, function: str) -> dict[str, Any]:
    return {"temperature_c": getattr(nvml, function)(handle, nvml.NVML_TEMPERATURE_GPU)}


def _processes(nvml: Any, handle: Any, *, version: str) -> dict[str, Any]:
    """Reads processes by an explicit version: pynvml's default fails on old drivers.

    `is_here` is False for pids of another PID namespace.
    """
    running = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses_{version}")(handle)
    entries = [
        {"pid": p.pid, "bytes": p.usedGpuMemory, "is_here": os.path.exists(f"/proc/{p.pid}")}
        for p in running
    ]
    return {"processes": entries}


METRICS: Final = (
    # Energy first: power is worked out from its difference over time.
    Metric(
        *("energy", Tier.EVERY_SAMPLE, ("energy_mj",)),
        (_number("energy_mj", "TotalEnergyConsumption"),),
    ),
    Metric(
        *("power", Tier.EVERY_SAMPLE, ("power_w",)),
        (_number("power_w", "PowerUsage", unit=1000),),
    ),
    Metric("utilization", Tier.EVERY_SAMPLE, ("utilization_gpu_percent",), (_utilization,)),
    Metric(
        *("memory", Tier.EVERY_SAMPLE, ("memory_used_bytes", "memory_total_bytes")),
        (partial(_memory, is_old=False), partial(_memory, is_old=True)),
    ),
    Metric(
        *("temperature", Tier.RARE, ("temperature_c",)),
        tuple(partial(_temperature, function=f"nvmlDeviceGetTemperature{v}") for v in ("", "V")),
    ),
    Metric(
        *("power_limit", Tier.RARE, ("power_limit_w",)),
        (_number("power_limit_w", "EnforcedPowerLimit", unit=1000),),
    ),
    Metric(  # second the older name of the same call
        *("clock_reasons", Tier.RARE, ("clock_reasons",)),
        tuple(_number("clock_reasons", f"CurrentClocks{x}Reasons") for x in ("Event", "Throttle")),
    ),
    Metric(
        *("processes", Tier.RARE, ("processes",)),
        (partial(_processes, version="v3"), partial(_processes, version="v2")),
    ),
)


def _text(value: str | bytes) -> str:
    # older bindings return bytes
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _name(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def _uuid(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(handle))


# In every entry.
IDENTITY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"uuid": _uuid, "name": _name}


def is_mig_enabled(nvml: Any, handle: Any) -> bool:
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    return bool(current)


def mig_instances(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Returns the instances of a GPU with MIG: uuid, gpu_instance, compute_instance."""
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except Exception:
            continue  # no instance with this index
        instances.append(
            {
                "uuid": _uuid(nvml, instance),
                "gpu_instance": nvml.nvmlDeviceGetGpuInstanceId(instance),
                "compute_instance": nvml.nvmlDeviceGetComputeInstanceId(instance),
                "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(instance).total,
            }
        )
    return instances


# A metric's calls may take this share of the time over all devices: they may hold a driver lock
# that the script needs.
MAX_CALL_SHARE: Final = 0.02
RARE_NS: Final = NS_PER_S
MAX_INTERVAL_NS: Final = 30 * NS_PER_S
# After a failure it is read again a second later, then two, four, ...
FIRST_RETRY_NS: Final = NS_PER_S
_DOUBLINGS: Final = 5
# Jitter of a tick's time.
_SLACK_NS: Final = 10_000_000


class MetricPace:
    """Schedules one metric of one device (`next_ns`); `devices` share the driver."""

    def __init__(self, tier: Tier, interval_ns: int, devices: int) -> None:
        self._tier = tier
        self._devices = devices
        self._nominal_ns = max(interval_ns, RARE_NS) if tier is Tier.RARE else interval_ns
        self._interval_ns = self._nominal_ns
        self.next_ns = 0
        self._last_took_ns = 0
        self._failures = 0

    @property
    def slowed_ns(self) -> int | None:
        """Time between calls in ns if slow calls made it longer, else None."""
        return self._interval_ns if self._interval_ns > self._nominal_ns else None

    def is_due(self, tick_ns: int) -> bool:
        return tick_ns >= self.next_ns

    def asked(self, tick_ns: int, took_ns: int, *, is_answered: bool) -> None:
        """Records the duration and success of a call in the sample at `tick_ns`."""
        # The faster of two calls counts: on a busy machine a single call may be slow.
        affordable_ns = int(min(took_ns, self._last_took_ns) * self._devices / MAX_CALL_SHARE)
        self._last_took_ns = took_ns
        self._failures = 0 if is_answered else min(self._failures + 1, _DOUBLINGS + 1)
        retry_ns = FIRST_RETRY_NS << self._failures - 1 if self._failures else 0
        wanted_ns = min(max(affordable_ns, retry_ns), MAX_INTERVAL_NS)
        self._interval_ns = max(self._nominal_ns, wanted_ns)
        is_at_every_sample = self._tier is Tier.EVERY_SAMPLE and self.slowed_ns is None
        self.next_ns = 0 if is_at_every_sample else tick_ns + self._interval_ns - _SLACK_NS
