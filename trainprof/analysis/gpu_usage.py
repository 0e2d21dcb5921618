"""How busy a GPU was, over the run and in its phases, and what kept its clocks down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainprof.analysis.coverage import Coverage
from trainprof.analysis.gpu_figures import Utilization
from trainprof.analysis.time_weighted import Floats, Spans, Times, Window, statistics

# Of utilization in percent.
LOW: Final = 10
HIGH: Final = 90
_FULL: Final = 100
_BINS: Final = 10

# NVML's bits: nvmlClocksEventReason* in nvml.h. The first ones limit nothing that work would need.
_NO_LIMITS: Final = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x100: "display_clocks",
}
_LIMITS: Final = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal_slowdown",
    0x40: "hardware_thermal_slowdown",
    0x80: "power_brake",
}
_BITS: Final = 63


def spans_in(values: Floats, times_ns: Times, part: Coverage, window: Window) -> Spans:
    """Returns a gauge's values with the time inside a part of the run for which each holds.

    A sample after the window's end tells of another time. One at the very start has no span: it
    counts where there is no other.

    Args:
        values: Shape (n,).
        times_ns: Shape (n,), in ns, not decreasing; each value holds since the one before.
        part: What is looked at.
        window: At its start the first sample's span begins.
    """
    if len(times_ns) == 0 or part.total_ns() == 0:
        return Spans(*(np.empty(0) for _ in range(3)))
    values = np.where(times_ns <= window.end_ns, values, np.nan)
    bounds_ns = np.concatenate(([min(window.start_ns, int(times_ns[0]))], times_ns))
    weights = np.diff(part.until(bounds_ns)).astype(np.float64)
    is_kept = ~np.isnan(values) & (weights > 0)
    if not is_kept.any():
        is_near = (times_ns >= part.starts[0]) & (times_ns <= part.ends[-1])
        told = values[~np.isnan(values) & is_near]
        return Spans(told, np.ones_like(told), np.ones_like(told))
    spans_ns = np.diff(bounds_ns).astype(np.float64)
    return Spans(values[is_kept], weights[is_kept], spans_ns[is_kept])


def utilization_of(spans: Spans) -> Utilization | None:
    """Returns how utilization in percent is distributed, or None without a value."""
    stat = statistics(spans)
    if stat is None:
        return None
    values, weights = spans.values, spans.weights_ns
    total = float(weights.sum())

    def share(chosen: NDArray[np.bool_]) -> float:
        return float(weights[chosen].sum()) / total

    bins = np.clip(values // (_FULL / _BINS), 0, _BINS).astype(np.int64)
    return Utilization(
        **stat,
        share_below_10=share(values < LOW),
        share_10_to_90=share((values >= LOW) & (values <= HIGH)),
        share_above_90=share(values > HIGH),
        histogram=(np.bincount(bins, weights, minlength=_BINS + 1) / total).tolist(),
    )


def clock_reasons(spans: Spans) -> tuple[dict[str, float] | None, float | None]:
    """Returns the share of time of each reason that kept clocks down, and that of all limits.

    Args:
        spans: Values are NVML's bit masks.

    Returns:
        Reasons that came up, by name; unknown ones by their bit. None, None without a value.
    """
    is_mask = (spans.values >= 0) & (spans.values < 2.0**_BITS)
    masks, weights = spans.values[is_mask].astype(np.int64), spans.weights_ns[is_mask]
    total = float(weights.sum())
    if total <= 0:
        return None, None

    def share(bits: int) -> float:
        return float(weights[(masks & bits) != 0].sum()) / total

    names = _NO_LIMITS | _LIMITS
    seen = int(np.bitwise_or.reduce(masks))
    reasons = {
        names.get(bit, f"reason {bit:#x}"): share(bit)
        for bit in (1 << shift for shift in range(_BITS))
        if seen & bit
    }
    return reasons, share(sum(_LIMITS))


def phases_of(
    window: tuple[int, int], loop: tuple[int, int], evaluation_ns: NDArray[np.int64]
) -> Mapping[str, Coverage]:
    """Returns the run's phases; training is the loop without evaluation.

    Args:
        window: Start and end of what is looked at, in ns.
        loop: First iteration's start and last one's end, in ns.
        evaluation_ns: Starts and ends of evaluation, shape (n, 2), in ns, in order.
    """
    evaluation = Coverage.of(evaluation_ns, window)
    return {
        "initialization": Coverage.of_one(window[0], loop[0]),
        "training": evaluation.left_of(*loop),
        "evaluation": evaluation,
        "finalization": Coverage.of_one(loop[1], window[1]),
    }
