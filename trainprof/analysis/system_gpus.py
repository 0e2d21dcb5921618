"""The GPUs over the run, as NVML told it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainprof.analysis.system_processes import entries
from trainprof.analysis.time_weighted import (
    Line,
    Window,
    field_column,
    gauge_statistics,
    number,
    rates,
    spans_between,
    times_of,
)

MJ_PER_WH: Final = 3_600_000
S_PER_H: Final = 3600


def gpus_of(gpu_lines: Sequence[Line], window: Window) -> list[dict[str, Any]]:
    """Returns every device seen, by index; utilization in percent, as NVML tells it."""
    seen: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in gpu_lines:
        for device in entries(line, "gpus"):
            index, uuid = number(device.get("index")), device.get("uuid")
            if index is not None:
                seen[int(index), str(uuid)].append({**device, "t_ns": line["t_ns"]})
    return [_gpu(samples, window) for _, samples in sorted(seen.items())]


def _gpu(samples: list[Line], window: Window) -> dict[str, Any]:
    times_ns = times_of(samples)

    def over_time(name: str) -> dict[str, float] | None:
        values = field_column(samples, name)
        return gauge_statistics(values, times_ns, window, since_ns=window.start_ns)

    energy_wh, energy_source = _energy(samples, window)
    last = samples[-1]
    reasons: dict[str, str] = {}
    for sample in samples:
        told = sample.get("not_observed")
        if isinstance(told, dict):
            reasons.update({str(metric): str(reason) for metric, reason in told.items()})
    return {
        "index": last["index"],
        "uuid": last.get("uuid"),
        "name": last.get("name"),
        "utilization": over_time("utilization_gpu_percent"),
        "memory_utilization": over_time("utilization_memory_percent"),
        "memory_bytes": over_time("memory_used_bytes"),
        "memory_total_bytes": _last_number(samples, "memory_total_bytes"),
        "power_w": over_time("power_w"),
        "power_limit_w": _last_number(samples, "power_limit_w"),
        "temperature_c": over_time("temperature_c"),
        "energy_wh": energy_wh,
        "energy_source": energy_source,
        "not_observed": reasons,
    }


def _energy(samples: list[Line], window: Window) -> tuple[float | None, str | None]:
    """Returns a device's energy in Wh from its first sample on, and how it was found.

    The driver's counter where it only grew, else the trapezoids under the power samples.
    """
    times_ns, counter_mj = times_of(samples), field_column(samples, "energy_mj")
    counter = rates(counter_mj, times_ns, window)
    told_mj = counter_mj[~np.isnan(counter_mj)]
    if len(counter.values) and np.all(np.diff(told_mj) >= 0):
        return counter.total / MJ_PER_WH, "counter"
    power_w = field_column(samples, "power_w")
    trapezoids = spans_between((power_w[:-1] + power_w[1:]) / 2, times_ns, window)
    return (trapezoids.total / S_PER_H, "estimated") if len(trapezoids.values) else (None, None)


def _last_number(samples: list[Line], name: str) -> float | None:
    told = [number(sample.get(name)) for sample in samples]
    return next((value for value in reversed(told) if value is not None), None)
