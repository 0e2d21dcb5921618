"""What NVML shows of every GPU. No NVML, or no GPU, is normal.

NVML's failures are of many kinds, and not all are `NVMLError` (`NVMLLibraryMismatchError` is not):
here `Exception` is caught, the reason kept once, and the metric left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from trainprof.sampling.loop import NothingToSample

METRICS: Final = (
    "utilization_gpu_percent",
    "utilization_memory_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "temperature_c",
    "energy_mj",
)

# NVML's return codes that the next call will not mend.
_DRIVER_NOT_LOADED: Final = 9
_FOR_GOOD: Final = frozenset({3, 4, 13})  # not supported, no permission, function not found
_LOST: Final = frozenset({_DRIVER_NOT_LOADED, 15, 16})  # GPU is lost, reset required


def load_nvml() -> Any:
    """Returns the module that speaks to NVML; imported only where GPUs are sampled."""
    import pynvml

    return pynvml


class GpuReader:
    """Reads every GPU that NVML shows, whatever CUDA_VISIBLE_DEVICES says.

    All calls are made from the thread that calls `sample`; each may block as long as it likes.

    Args:
        load: Gives the module to call, pynvml by default.
    """

    def __init__(self, load: Callable[[], Any] = load_nvml) -> None:
        self._load = load
        self._nvml: Any = None
        self._devices: list[GpuDevice] = []

    def sample(self) -> dict[str, Any]:
        """Returns `gpus`, one entry per device.

        Raises:
            NothingToSample: If there is no NVML, no GPU, or none is left; with the reason.
        """
        if self._nvml is None:
            self._open()
        elif all(device.lost for device in self._devices):
            raise NothingToSample("every GPU is lost")
        return {"gpus": [device.sample() for device in self._devices]}

    def close(self) -> None:
        """Gives NVML back; its own failure is of no interest any more."""
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except Exception:
                return

    def _open(self) -> None:
        try:
            nvml = self._load()
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except Exception as error:
            raise NothingToSample(f"NVML: {describe(error)}") from error
        self._nvml = nvml
        if count == 0:
            raise NothingToSample("NVML shows no GPU")
        self._devices = [GpuDevice(nvml, index) for index in range(count)]


class GpuDevice:
    """One GPU: its identity, read once, and its metrics.

    Attributes:
        lost: No further call is made: the device is gone.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self.lost = False
        self._nvml = nvml
        self._index = index
        self._silent: set[str] = set()
        self._told: dict[str, str] = {}
        self._untold: dict[str, str] = {}
        self._handle = self._ask("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        if self._handle is None:
            self.lost = True
        self._identity = {
            "index": index,
            "uuid": self._ask("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(self._handle))),
            "name": self._ask("name", lambda: _text(nvml.nvmlDeviceGetName(self._handle))),
            "power_limit_w": self._ask(
                "power_limit_w",
                lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000,
            ),
        }

    def sample(self) -> dict[str, Any]:
        """Returns identity and METRICS, None where not told.

        `not_observed` {metric: reason} stands in the first entry after a reason came up.
        """
        entry: dict[str, Any] = {**self._identity, **dict.fromkeys(METRICS)}
        for name, read in _READERS:
            if name not in self._silent:
                told = self._ask(name, partial(read, self._nvml, self._handle))
                entry.update(told or {})
        if self._untold:
            entry["not_observed"], self._untold = self._untold, {}
        return entry

    def _ask(self, name: str, call: Callable[[], Any]) -> Any:
        """Returns what `call` returns, or None and keeps the reason."""
        if self.lost:
            return None
        try:
            return call()
        except Exception as error:
            code = getattr(error, "value", None)
            # An error that is not NVML's own comes from the binding: it will be there next time.
            if code in _FOR_GOOD or code is None:
                self._silent.add(name)
            self.lost = code in _LOST
            self._keep_reason(name, describe(error))
            return None

    def _keep_reason(self, name: str, reason: str) -> None:
        if name not in self._told:
            self._told[name] = self._untold[name] = reason


def describe(error: Exception) -> str:
    """Returns an error in one line; some of NVML's have no text."""
    return " ".join(str(error).split()) or type(error).__name__


def _text(value: str | bytes) -> str:
    # older bindings return bytes
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _utilization(nvml: Any, handle: Any) -> dict[str, Any]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization_gpu_percent": rates.gpu,
        "utilization_memory_percent": rates.memory,
    }


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    # The first version counts what the driver reserves as used; old drivers have no second.
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except Exception:
        told = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": told.used, "memory_total_bytes": told.total}


def _power(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _temperature(nvml: Any, handle: Any) -> dict[str, Any]:
    try:
        celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    except Exception:  # newer drivers may offer the versioned call alone
        celsius = nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
    return {"temperature_c": celsius}


def _energy(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"energy_mj": nvml.nvmlDeviceGetTotalEnergyConsumption(handle)}


_READERS: Final = (
    ("utilization", _utilization),
    ("memory", _memory),
    ("power", _power),
    ("temperature", _temperature),
    ("energy", _energy),
)
