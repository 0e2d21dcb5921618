"""The GPUs over the run, as NVML told it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainprof.analysis.coverage import Coverage
from trainprof.analysis.gpu_energy import energy_curve
from trainprof.analysis.gpu_figures import ENERGY_COUNTER, ENERGY_ESTIMATED, Energy, Gpu
from trainprof.analysis.gpu_usage import (
    clock_reasons,
    spans_in,
    utilization_of,
)
from trainprof.analysis.system_processes import entries
from trainprof.analysis.time_weighted import (
    NS_PER_S,
    Floats,
    Line,
    Spans,
    Times,
    Window,
    field_column,
    gauge_statistics,
    number,
    times_of,
)

# NVML's power is a mean over up to a second: it says little of less time than that.
MIN_EPOCH_NS: Final = NS_PER_S
# An epoch of which less was observed has no energy.
MIN_OBSERVED_SHARE: Final = 0.5
MAX_PROCESSES: Final = 64
# A device's own time stands behind its line's by what the calls took; more is damage.
_MAX_LATE_NS: Final = 60 * NS_PER_S

_NO_EPOCHS: Final[NDArray[np.int64]] = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class GpuContext:
    """What of the run the GPUs' samples are looked at by.

    Attributes:
        phases: The run's phases by name.
        epochs_ns: Starts and ends of the summary's epochs, shape (n, 2), in ns.
        samples: Trained on, None where not known.
    """

    phases: Mapping[str, Coverage] = field(default_factory=dict)
    epochs_ns: NDArray[np.int64] = field(default_factory=lambda: _NO_EPOCHS)
    samples: int | None = None


def gpus_of(
    gpu_lines: Sequence[Line], window: Window, context: GpuContext, own_pids: Collection[int]
) -> list[Gpu]:
    """Returns every device seen, by index.

    Args:
        gpu_lines: In time order.
        window: What of the run is looked at.
        context: Its phases and epochs.
        own_pids: Of the script's process tree.
    """
    seen: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in gpu_lines:
        for device in entries(line, "gpus"):
            index, uuid = number(device.get("index")), device.get("uuid")
            if index is not None:
                sample = {**device, "t_ns": _time_ns(line["t_ns"], device.get("t_ns"))}
                seen[int(index), str(uuid)].append(sample)
    for samples in seen.values():
        samples.sort(key=lambda sample: sample["t_ns"])
    return [
        _gpu(index, samples, window, context, own_pids)
        for (index, _), samples in sorted(seen.items())
    ]


def energy_of(gpus: Sequence[Gpu], samples: int | None) -> Energy | None:
    """Returns what the script's GPUs used together, or None where it is not known of one of them.

    Args:
        gpus: All devices.
        samples: Trained on, None where not known.
    """
    used = [gpu for gpu in gpus if gpu.is_used]
    counted = used or [gpu for gpu in gpus if gpu.is_visible is not False]
    told = [gpu.energy_wh for gpu in counted if gpu.energy_wh is not None]
    if not told or len(told) < len(counted):
        return None
    wh = sum(told)
    sources = {gpu.energy_source for gpu in counted}
    epochs = zip(*(gpu.epoch_energy_wh for gpu in counted), strict=True)
    return Energy(
        wh=wh,
        source=ENERGY_COUNTER if sources == {ENERGY_COUNTER} else ENERGY_ESTIMATED,
        gpus=[gpu.index for gpu in counted],
        samples_per_wh=samples / wh if samples and wh > 0 else None,
        epoch_wh=[_sum_of_all(epoch) for epoch in epochs],
    )


def gpu_cost(gpu_lines: Sequence[Line]) -> dict[str, Any] | None:
    """Returns what the calls to the driver took, from the first sample on, or None without two.

    Returns:
        seconds_per_sample, share (of the time), calls, and slowed_s: the metrics that were asked
        for less often than planned, with the longest time from call to call in s.
    """
    slowed_s: dict[str, float] = {}
    for line in gpu_lines:
        told = line.get("slowed_s")
        for name, interval in told.items() if isinstance(told, dict) else ():
            slowed_s[name] = max(slowed_s.get(name, 0.0), number(interval) or 0.0)
    calls, call_ns = field_column(gpu_lines, "calls"), field_column(gpu_lines, "call_ns")
    told_at = np.flatnonzero(~np.isnan(calls) & ~np.isnan(call_ns))
    if len(told_at) < 2:
        return None
    # The first sample starts the driver's library, which is done once.
    first, last = told_at[0], told_at[-1]
    took_ns, passed_ns = call_ns[last] - call_ns[first], _passed_ns(gpu_lines, first, last)
    if took_ns < 0 or passed_ns <= 0:
        return None
    return {
        "seconds_per_sample": float(took_ns) / NS_PER_S / int(last - first),
        "share": float(took_ns) / passed_ns,
        "calls": max(int(calls[last] - calls[first]), 0),
        "slowed_s": slowed_s,
    }


def _passed_ns(lines: Sequence[Line], first: int, last: int) -> int:
    passed: int = lines[last]["t_ns"] - lines[first]["t_ns"]
    return passed


def _sum_of_all(parts: Sequence[float | None]) -> float | None:
    told = [part for part in parts if part is not None]
    return sum(told) if told and len(told) == len(parts) else None


def _time_ns(line_ns: int, own: Any) -> int:
    own_ns = number(own)
    return line_ns if own_ns is None or not 0 <= own_ns - line_ns <= _MAX_LATE_NS else int(own_ns)


def _gpu(
    index: int,
    samples: list[Line],
    window: Window,
    context: GpuContext,
    own_pids: Collection[int],
) -> Gpu:
    def over_time(name: str) -> dict[str, float] | None:
        values, times_ns = _asked(samples, name)
        return gauge_statistics(values, times_ns, window, since_ns=window.start_ns)

    def spans(name: str, part: Coverage) -> Spans:
        return spans_in(*_asked(samples, name), part, window)

    whole = Coverage.of_one(window.start_ns, window.end_ns)
    busy_by_phase = {
        phase: utilization_of(spans("utilization_gpu_percent", part))
        for phase, part in context.phases.items()
    }
    reasons, throttled = clock_reasons(spans("clock_reasons", whole))
    processes = _processes(samples, own_pids)
    last = samples[-1]
    return Gpu(
        index=index,
        uuid=_text(last.get("uuid")),
        name=_text(last.get("name")),
        logical_index=_last_int(samples, "logical_index"),
        is_visible=_last_bool(samples, "is_visible"),
        is_number_assumed=_last_bool(samples, "is_number_assumed") is not False,
        is_used=_is_used(processes),
        utilization=utilization_of(spans("utilization_gpu_percent", whole)),
        utilization_by_phase={
            phase: told for phase, told in busy_by_phase.items() if told is not None
        },
        memory_utilization=over_time("utilization_memory_percent"),
        memory_bytes=over_time("memory_used_bytes"),
        memory_total_bytes=_last_number(samples, "memory_total_bytes"),
        power_w=over_time("power_w"),
        power_limit_w=_last_number(samples, "power_limit_w"),
        temperature_c=over_time("temperature_c"),
        sm_clock_mhz=over_time("sm_clock_mhz"),
        sm_clock_max_mhz=_last_number(samples, "sm_clock_max_mhz"),
        memory_clock_mhz=over_time("memory_clock_mhz"),
        memory_clock_max_mhz=_last_number(samples, "memory_clock_max_mhz"),
        throttled_share=throttled,
        clock_reasons=reasons,
        pcie_sent_bytes_per_s=over_time("pcie_sent_bytes_per_s"),
        pcie_received_bytes_per_s=over_time("pcie_received_bytes_per_s"),
        pcie_link={
            # A link at rest slows down: what it can do is the best that was seen.
            "generation": _greatest(samples, "pcie_generation"),
            "width": _greatest(samples, "pcie_width"),
            "max_generation": _last_number(samples, "pcie_max_generation"),
            "max_width": _last_number(samples, "pcie_max_width"),
        },
        processes=processes,
        mig=_mig(samples),
        **_energy(samples, window, context.epochs_ns),
        seen_s=[(samples[at]["t_ns"] - window.start_ns) / NS_PER_S for at in (0, len(samples) - 1)],
        not_observed=_reasons(samples),
    )


def _asked(samples: Sequence[Line], name: str) -> tuple[Floats, Times]:
    """Returns a metric and its times, of the samples in which it was asked for."""
    asked = [sample for sample in samples if name in sample]
    return field_column(asked, name), times_of(asked)


def _energy(
    samples: Sequence[Line], window: Window, epochs_ns: NDArray[np.int64]
) -> dict[str, Any]:
    """Returns a device's energy in Wh from its first sample on, and how it was found."""
    curve = energy_curve(
        times_of(samples), field_column(samples, "energy_mj"), field_column(samples, "power_w")
    )
    bounds = np.concatenate(([[window.start_ns, window.end_ns]], epochs_ns)).astype(np.int64)
    part = curve.between(bounds[:, 0], bounds[:, 1])
    whole_s, estimated_s = float(part.observed_s[0]), float(part.estimated_s[0])
    length_ns = bounds[:, 1] - bounds[:, 0]
    is_known = length_ns >= MIN_EPOCH_NS
    is_known &= part.observed_s * NS_PER_S >= MIN_OBSERVED_SHARE * length_ns
    found: dict[str, Any] = {
        "epoch_energy_wh": [
            wh if known else None
            for wh, known in zip(part.wh[1:].tolist(), is_known[1:].tolist(), strict=True)
        ]
    }
    if whole_s <= 0:
        return found
    return found | {
        "energy_wh": float(part.wh[0]),
        "energy_source": ENERGY_ESTIMATED if estimated_s > 0 else ENERGY_COUNTER,
        "energy_estimated_share": estimated_s / whole_s,
        "energy_s": whole_s,
    }


def _processes(samples: Sequence[Line], own_pids: Collection[int]) -> list[dict[str, Any]] | None:
    asked = [sample for sample in samples if isinstance(sample.get("processes"), list)]
    if not asked:
        return None
    found: dict[int, dict[str, Any]] = {}
    for sample in asked:
        for process in entries(sample, "processes"):
            pid = number(process.get("pid"))
            if pid is None:
                continue
            one = found.setdefault(int(pid), {"bytes": None, "samples": 0, "is_here": False})
            held = number(process.get("bytes"))
            one["samples"] += 1
            one["is_here"] |= process.get("is_here") is True
            one["bytes"] = max(
                (told for told in (one["bytes"], held) if told is not None), default=None
            )
    listed = [
        {
            "pid": pid,
            "role": "own" if pid in own_pids else "other" if one["is_here"] else "unknown",
            "bytes": one["bytes"],
            "share_of_samples": min(one["samples"] / len(asked), 1.0),
        }
        for pid, one in found.items()
    ]
    listed.sort(key=lambda one: (-(one["bytes"] or 0), one["pid"]))
    return listed[:MAX_PROCESSES]


def _is_used(processes: list[dict[str, Any]] | None) -> bool | None:
    roles = {process["role"] for process in processes or ()}
    if "own" in roles:
        return True
    return None if processes is None or "unknown" in roles else False


def _mig(samples: Sequence[Line]) -> list[dict[str, Any]] | None:
    told = next((sample for sample in samples if isinstance(sample.get("mig"), list)), None)
    if told is None:
        return None
    numbers = ("gpu_instance", "compute_instance", "memory_bytes", "logical_index")
    return [
        {"uuid": _text(one.get("uuid")), **{name: number(one.get(name)) for name in numbers}}
        for one in entries(told, "mig")
    ]


def _reasons(samples: Sequence[Line]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for sample in samples:
        told = sample.get("not_observed")
        if isinstance(told, dict):
            reasons.update({str(metric): str(reason) for metric, reason in told.items()})
    return reasons


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _last_bool(samples: Sequence[Line], name: str) -> bool | None:
    told = [sample[name] for sample in samples if isinstance(sample.get(name), bool)]
    return told[-1] if told else None


def _last_number(samples: Sequence[Line], name: str) -> float | None:
    told = [number(sample.get(name)) for sample in samples]
    return next((value for value in reversed(told) if value is not None), None)


def _last_int(samples: Sequence[Line], name: str) -> int | None:
    value = _last_number(samples, name)
    return None if value is None else int(value)


def _greatest(samples: Sequence[Line], name: str) -> float | None:
    told = [number(sample.get(name)) for sample in samples]
    return max((value for value in told if value is not None), default=None)
