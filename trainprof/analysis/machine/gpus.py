"""The GPUs over the run, as NVML reported them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from trainprof.analysis.machine.processes import entries
from trainprof.analysis.statistics.time_weighted import (
    NS_PER_S,
    Floats,
    Line,
    Times,
    Window,
    field_column,
    gauge,
    gauge_statistics,
    times_of,
)
from trainprof.analysis.summary.device import (
    ENERGY_COUNTER,
    ENERGY_ESTIMATED,
    Energy,
    Gpu,
    Utilization,
)
from trainprof.record.notes import known

MAX_PROCESSES: Final = 64
# A device's time comes after its line's by the time of the calls; more is damage.
_MAX_LATE_NS: Final = 60 * NS_PER_S
_MJ_PER_WH: Final = 3.6e6
# Power is not interpolated between samples that are further apart.
_MAX_POWER_GAP_S: Final = 60.0
# NVML's bits of throttling, nvmlClocksEventReason* in nvml.h: power cap, hardware slowdown, sync
# boost, software and hardware thermal slowdown, power brake. Others do not slow work.
_LIMITS: Final = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
_BITS: Final = 63


def gpus_of(gpu_lines: Sequence[Line], window: Window, own_pids: Collection[int]) -> list[Gpu]:
    """Returns every device, by index."""
    return [
        _gpu(index, samples, window, own_pids)
        for (index, _), samples in samples_by_gpu(gpu_lines).items()
    ]


def samples_by_gpu(gpu_lines: Sequence[Line]) -> dict[tuple[int, str], list[Line]]:
    """Returns every device's samples in order of time, by its index and uuid, ascending."""
    seen: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in gpu_lines:
        for device in entries(line, "gpus"):
            index, uuid = known(device.get("index")), device.get("uuid")
            if index is not None:
                sample = {**device, "t_ns": _time_ns(line["t_ns"], device.get("t_ns"))}
                seen[int(index), str(uuid)].append(sample)
    for samples in seen.values():
        samples.sort(key=lambda sample: sample["t_ns"])
    return dict(sorted(seen.items()))


def energy_of(gpus: Sequence[Gpu], samples: int | None) -> Energy | None:
    """Returns the energy of the script's GPUs, or None where that of a GPU is unknown."""
    used = [gpu for gpu in gpus if gpu.is_used]
    counted = used or [gpu for gpu in gpus if gpu.is_visible is not False]
    energies = [gpu.energy_wh for gpu in counted if gpu.energy_wh is not None]
    if not energies or len(energies) < len(counted):
        return None
    wh, sources = sum(energies), {gpu.energy_source for gpu in counted}
    return Energy(
        wh=wh,
        source=ENERGY_COUNTER if sources == {ENERGY_COUNTER} else ENERGY_ESTIMATED,
        gpus=[gpu.index for gpu in counted],
        samples_per_wh=samples / wh if samples and wh > 0 else None,
    )


def _time_ns(line_ns: int, own: Any) -> int:
    own_ns = known(own)
    return line_ns if own_ns is None or not 0 <= own_ns - line_ns <= _MAX_LATE_NS else int(own_ns)


def _gpu(index: int, samples: list[Line], window: Window, own_pids: Collection[int]) -> Gpu:
    def over_time(name: str) -> dict[str, float] | None:
        values, times_ns = asked_values(samples, name)
        return gauge_statistics(values, times_ns, window, since_ns=window.start_ns)

    busy, processes = over_time("utilization_gpu_percent"), _processes(samples, own_pids)
    energy_wh, is_estimated = _energy_wh(samples, window)
    return Gpu(
        index=index,
        uuid=_text(samples[-1].get("uuid")),
        name=_text(samples[-1].get("name")),
        logical_index=_last_int(samples, "logical_index"),
        is_visible=_last_bool(samples, "is_visible"),
        is_number_assumed=_last_bool(samples, "is_number_assumed") is not False,
        is_used=_is_used(processes),
        utilization=None if busy is None else Utilization(**busy),
        memory_bytes=over_time("memory_used_bytes"),
        memory_total_bytes=_last_number(samples, "memory_total_bytes"),
        power_w=over_time("power_w"),
        power_limit_w=_last_number(samples, "power_limit_w"),
        temperature_c=over_time("temperature_c"),
        throttled_share=_throttled_share(*asked_values(samples, "clock_reasons"), window),
        processes=processes,
        mig=_mig(samples),
        energy_wh=energy_wh,
        energy_source=None
        if energy_wh is None
        else ENERGY_ESTIMATED
        if is_estimated
        else ENERGY_COUNTER,
        seen_s=[(samples[at]["t_ns"] - window.start_ns) / NS_PER_S for at in (0, len(samples) - 1)],
        not_observed=_reasons(samples),
    )


def asked_values(samples: Sequence[Line], name: str) -> tuple[Floats, Times]:
    """Returns a metric and its times, of the samples that include it."""
    asked = [sample for sample in samples if name in sample]
    return field_column(asked, name), times_of(asked)


def _throttled_share(masks: Floats, times_ns: Times, window: Window) -> float | None:
    """Returns the share of the time in which NVML reports throttling."""
    masks = np.where((masks >= 0) & (masks < 2.0**_BITS), masks, np.nan)
    spans = gauge(masks, times_ns, window, since_ns=window.start_ns)
    if not len(spans.values):
        return None
    is_limited = (spans.values.astype(np.int64) & _LIMITS) != 0
    return float(np.average(is_limited, weights=spans.weights_ns))


def _energy_wh(samples: Sequence[Line], window: Window) -> tuple[float | None, bool]:
    """Returns a device's energy in Wh over the run, and whether a part of it is an estimate.

    The driver's counter is used where it does not decrease. Where it does (the driver was
    reloaded) or is missing, power samples are integrated (trapezoid).
    """
    times_ns = times_of(samples)
    passed_s = np.diff(times_ns) / NS_PER_S
    counter_mj, since_ns = field_column(samples, "energy_mj"), times_ns - times_ns[0]
    if (is_read := ~np.isnan(counter_mj)).any():
        between = np.interp(since_ns, since_ns[is_read], counter_mj[is_read], np.nan, np.nan)
        counter_mj = np.where(is_read, counter_mj, between)
    counted_mj = np.diff(counter_mj)
    power_w = field_column(samples, "power_w")
    power_w[~(power_w >= 0)] = np.nan
    drawn_mj = (power_w[1:] + power_w[:-1]) / 2 * passed_s * 1000
    drawn_mj[passed_s > _MAX_POWER_GAP_S] = np.nan
    is_counted = counted_mj >= 0
    grown_mj = np.where(is_counted, counted_mj, drawn_mj)
    is_known = ~np.isnan(grown_mj) & (passed_s > 0)
    # Of the time outside of the run a stretch has its part.
    inside_ns = np.minimum(times_ns[1:], window.end_ns) - np.maximum(times_ns[:-1], window.start_ns)
    is_known &= inside_ns > 0
    if not is_known.any():
        return None, False
    part = inside_ns[is_known] / NS_PER_S / passed_s[is_known]
    return float((grown_mj[is_known] * part).sum()) / _MJ_PER_WH, not is_counted[is_known].all()


def _processes(samples: Sequence[Line], own_pids: Collection[int]) -> list[dict[str, Any]] | None:
    asked = [sample for sample in samples if isinstance(sample.get("processes"), list)]
    if not asked:
        return None
    most: dict[int, float | None] = {}
    here: set[int] = set()
    for process in (process for sample in asked for process in entries(sample, "processes")):
        pid, held = known(process.get("pid")), known(process.get("bytes"))
        if pid is None:
            continue
        most[int(pid)] = max(most.get(int(pid)) or 0, held or 0) or None
        if process.get("is_here") is True:
            here.add(int(pid))
    listed: list[dict[str, Any]] = [
        {
            "pid": pid,
            "role": "own" if pid in own_pids else "other" if pid in here else "unknown",
            "bytes": held,
        }
        for pid, held in most.items()
    ]
    listed.sort(key=lambda process: (-(process["bytes"] or 0), process["pid"]))
    return listed[:MAX_PROCESSES]


def _is_used(processes: list[dict[str, Any]] | None) -> bool | None:
    roles = {process["role"] for process in processes or ()}
    if "own" in roles:
        return True
    return None if processes is None or "unknown" in roles else False


def _mig(samples: Sequence[Line]) -> list[dict[str, Any]] | None:
    first = next((sample for sample in samples if isinstance(sample.get("mig"), list)), None)
    if first is None:
        return None
    return [
        {
            "uuid": _text(instance.get("uuid")),
            **{name: known(instance.get(name)) for name in ("memory_bytes", "logical_index")},
        }
        for instance in entries(first, "mig")
    ]


def _reasons(samples: Sequence[Line]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for sample in samples:
        missing = sample.get("not_observed")
        if isinstance(missing, dict):
            reasons.update({str(metric): str(reason) for metric, reason in missing.items()})
    return reasons


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _last_bool(samples: Sequence[Line], name: str) -> bool | None:
    values = [sample[name] for sample in samples if isinstance(sample.get(name), bool)]
    return values[-1] if values else None


def _last_number(samples: Sequence[Line], name: str) -> float | None:
    values = [known(sample.get(name)) for sample in samples]
    return next((value for value in reversed(values) if value is not None), None)


def _last_int(samples: Sequence[Line], name: str) -> int | None:
    value = _last_number(samples, name)
    return None if value is None else int(value)
