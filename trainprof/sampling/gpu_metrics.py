"""What is asked of a GPU: each metric with the NVML calls that tell it, in units of ours.

A metric's readings are tried in turn: drivers and bindings differ in which of them they offer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

Reading = Callable[[Any, Any], dict[str, Any]]

# NVML tells PCIe throughput in KB/s.
_BYTES_PER_KB: Final = 1000


class Tier(Enum):
    """How often a metric is asked for: at every sample, or seldom, because the call is dear."""

    EVERY_SAMPLE = "every sample"
    SELDOM = "seldom"


@dataclass(frozen=True, slots=True)
class Metric:
    """One question to the driver.

    Attributes:
        name: What `not_observed` and `slowed_s` call it.
        keys: What it adds to a device's entry.
        readings: (nvml, handle) to these keys; the first one that is offered is used.
    """

    name: str
    tier: Tier
    keys: tuple[str, ...]
    readings: tuple[Reading, ...]


def _energy(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"energy_mj": nvml.nvmlDeviceGetTotalEnergyConsumption(handle)}


def _power(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _utilization(nvml: Any, handle: Any) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization_gpu_percent": rates.gpu,
        "utilization_memory_percent": rates.memory,
    }


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    told = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {"memory_used_bytes": told.used, "memory_total_bytes": told.total}


def _memory_with_reserved(nvml: Any, handle: Any) -> dict[str, Any]:
    """The call of old drivers, which counts as used what the driver reserves."""
    told = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": told.used, "memory_total_bytes": told.total}


def _power_limit(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _temperature(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)}


def _temperature_versioned(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"temperature_c": nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)}


def _sm_clock(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)}


def _memory_clock(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)}


def _event_reasons(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"clock_reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}


def _throttle_reasons(nvml: Any, handle: Any) -> dict[str, Any]:
    """The older name of the same call."""
    return {"clock_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _pcie_link(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
    }


def _pcie_throughput(nvml: Any, handle: Any) -> dict[str, Any]:
    """Each call watches the link for about 20 ms; sent and received are the GPU's view."""

    def bytes_per_s(counter: int) -> int:
        told: int = nvml.nvmlDeviceGetPcieThroughput(handle, counter)
        return told * _BYTES_PER_KB

    return {
        "pcie_sent_bytes_per_s": bytes_per_s(nvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_received_bytes_per_s": bytes_per_s(nvml.NVML_PCIE_UTIL_RX_BYTES),
    }


def _processes(nvml: Any, handle: Any, *, version: str) -> dict[str, Any]:
    """Names the call's version: the binding's own choice fails on old drivers.

    Where NVML tells pids of another PID namespace than ours (in a container), `is_here` is False.
    """
    told = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses_{version}")(handle)
    processes = [
        {
            "pid": process.pid,
            "bytes": process.usedGpuMemory,
            "is_here": os.path.exists(f"/proc/{process.pid}"),
        }
        for process in told
    ]
    return {"processes": processes}


METRICS: Final = (
    # First what its moment matters for: energy is power over time.
    Metric("energy", Tier.EVERY_SAMPLE, ("energy_mj",), (_energy,)),
    Metric("power", Tier.EVERY_SAMPLE, ("power_w",), (_power,)),
    Metric(
        "utilization",
        Tier.EVERY_SAMPLE,
        ("utilization_gpu_percent", "utilization_memory_percent"),
        (_utilization,),
    ),
    Metric(
        "memory",
        Tier.EVERY_SAMPLE,
        ("memory_used_bytes", "memory_total_bytes"),
        (_memory, _memory_with_reserved),
    ),
    Metric("temperature", Tier.SELDOM, ("temperature_c",), (_temperature, _temperature_versioned)),
    Metric("power_limit", Tier.SELDOM, ("power_limit_w",), (_power_limit,)),
    Metric("sm_clock", Tier.SELDOM, ("sm_clock_mhz",), (_sm_clock,)),
    Metric("memory_clock", Tier.SELDOM, ("memory_clock_mhz",), (_memory_clock,)),
    Metric("clock_reasons", Tier.SELDOM, ("clock_reasons",), (_event_reasons, _throttle_reasons)),
    Metric("pcie_link", Tier.SELDOM, ("pcie_generation", "pcie_width"), (_pcie_link,)),
    Metric(
        "processes",
        Tier.SELDOM,
        ("processes",),
        (partial(_processes, version="v3"), partial(_processes, version="v2")),
    ),
    Metric(
        "pcie_throughput",
        Tier.SELDOM,
        ("pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"),
        (_pcie_throughput,),
    ),
)


def _text(value: str | bytes) -> str:
    # older bindings return bytes
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _name(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def _uuid(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(handle))


def _max_sm_clock(nvml: Any, handle: Any) -> int:
    told: int = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    return told


def _max_memory_clock(nvml: Any, handle: Any) -> int:
    told: int = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
    return told


def _max_pcie_generation(nvml: Any, handle: Any) -> int:
    told: int = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    return told


def _max_pcie_width(nvml: Any, handle: Any) -> int:
    told: int = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    return told


# What every entry names the device by, ...
IDENTITY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"uuid": _uuid, "name": _name}
# ... and what does not change and stands in the first entry alone.
LIMITS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "sm_clock_max_mhz": _max_sm_clock,
    "memory_clock_max_mhz": _max_memory_clock,
    "pcie_max_generation": _max_pcie_generation,
    "pcie_max_width": _max_pcie_width,
}


def is_mig_enabled(nvml: Any, handle: Any) -> bool:
    """Tells whether the GPU is divided into instances (MIG) now."""
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    return bool(current)


def mig_instances(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Returns the instances of a GPU with MIG: uuid, gpu_instance, compute_instance."""
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except Exception:
            continue  # a place where no instance was made
        found.append(
            {
                "uuid": _uuid(nvml, instance),
                "gpu_instance": nvml.nvmlDeviceGetGpuInstanceId(instance),
                "compute_instance": nvml.nvmlDeviceGetComputeInstanceId(instance),
                "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(instance).total,
            }
        )
    return found
