"""Where the time of fetches went: what of it a core was busy, waited for, or not asked for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable, Float64


def running_ns(table: FetchTable) -> Float64:
    """Returns what of each fetch's wall time something was computed, NaN if not measured."""
    delay, reading = np.nan_to_num(table.delay_ns), np.nan_to_num(table.reading_ns)
    own = np.minimum(table.cpu_ns, table.wall_ns)
    # While a worker sleeps, others may work for it: a decoder with threads of its own. Where the
    # model is trained, torch's threads spin for a while after each operation.
    asleep = np.maximum(table.wall_ns - own - delay - reading, 0)
    others = np.where(table.worker > 0, np.maximum(table.process_cpu_ns - table.cpu_ns, 0), 0)
    running: Float64 = own + np.minimum(others, asleep)
    return running


def asleep_ns(table: FetchTable) -> Float64:
    """Returns what of each fetch's wall time neither ran, nor waited for a core, nor read."""
    told = running_ns(table) + np.nan_to_num(table.delay_ns) + np.nan_to_num(table.reading_ns)
    return np.maximum(np.nan_to_num(table.wall_ns - told), 0.0)


def usage_of(table: FetchTable) -> dict[str, Any]:
    """Sums up fetches: figures of `Fetch` by name, None where the kernel did not tell.

    The first five partition the fetches' wall time: what is not told is in asleep_s.
    """
    measured = np.flatnonzero(table.stands_for > 0)
    total, is_told = dict.fromkeys(_SUMMED, 0.0), dict.fromkeys(_SUMMED, False)
    for begin in range(0, len(measured), _BLOCK):  # of a million rows a copy would be felt
        rows = table.rows(measured[begin : begin + _BLOCK])
        for name, values in _parts(rows).items():
            total[name] += float((rows.stands_for * np.nan_to_num(values)).sum())
            is_told[name] |= not np.isnan(values).all()
    scale = float(table.wall_ns.sum()) / total["wall_s"] if total["wall_s"] else 0.0
    found: dict[str, Any] = {
        name: total[name] * scale / (1e9 if name.endswith("_s") else 1) if is_told[name] else None
        for name in _SUMMED[1:]
    }
    for name in ("read_bytes", "major_faults"):
        found[name] = None if found[name] is None else round(found[name])
    return {**found, "measured": len(measured)}


def _parts(table: FetchTable) -> dict[str, Float64]:
    """Returns what each measured fetch consists of, ns, and what it read; NaN if not told."""
    wall, running = table.wall_ns.astype(np.float64), running_ns(table)
    left, is_told = wall - running, ~np.isnan(table.delay_ns)
    waiting = np.minimum(np.nan_to_num(table.delay_ns), left)
    throttled = np.minimum(np.nan_to_num(table.throttled_ns), waiting)
    reading = np.minimum(np.nan_to_num(table.reading_ns), left - waiting)
    parts = (
        wall,
        running,
        np.where(is_told, waiting - throttled, np.nan),
        np.where(is_told, throttled, np.nan),
        np.where(np.isnan(table.reading_ns), np.nan, reading),
        left - waiting - reading,
        np.nan_to_num(table.process_cpu_ns),
        table.read_bytes,
        table.major_faults,
    )
    return dict(zip(_SUMMED, parts, strict=True))


_SUMMED: Final = (
    *("wall_s", "running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s", "cpu_s"),
    *("read_bytes", "major_faults"),
)
_BLOCK: Final = 1 << 16
