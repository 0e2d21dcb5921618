"""Where the time of fetches went: what of it a core was busy, waited for, or not asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.fetches import FetchTable, Float64


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over fetches; None where the kernel did not tell.

    The first five partition the fetches' wall time: what is not told is in `asleep_s`.

    Attributes:
        running_s: The thread was on a core, or others of its process in its place.
        runnable_s: No core was free.
        throttled_s: The cgroup was stopped by its quota.
        reading_s: It waited for block devices.
        asleep_s: It waited for something else: a lock, the network, a sleep, another process.
        cpu_s: CPU time of all threads of the process; may be more than the wall time.
        read_bytes: Read from block devices.
        major_faults: Pages that had to be read from there.
        measured: How many of the fetches were measured, the totals are scaled up from these.
    """

    running_s: float | None = None
    runnable_s: float | None = None
    throttled_s: float | None = None
    reading_s: float | None = None
    asleep_s: float | None = None
    cpu_s: float | None = None
    read_bytes: int | None = None
    major_faults: int | None = None
    measured: int = 0


def running_ns(table: FetchTable) -> Float64:
    """Returns what of each fetch's wall time something was computed, NaN if not measured."""
    delay, reading = np.nan_to_num(table.delay_ns), np.nan_to_num(table.reading_ns)
    own = np.minimum(table.cpu_ns, table.wall_ns)
    # While the thread sleeps, others may work for it: a decoder with threads of its own.
    asleep = np.maximum(table.wall_ns - own - delay - reading, 0)
    others = np.maximum(table.process_cpu_ns - table.cpu_ns, 0)
    running: Float64 = own + np.minimum(others, asleep)
    return running


def usage_of(table: FetchTable) -> Usage:
    """Sums up fetches."""
    measured = table.stands_for > 0
    if not measured.any():
        return Usage()
    all_ns = float(table.wall_ns.sum())
    table = table.rows(measured)
    weight, wall = table.stands_for, table.wall_ns.astype(np.float64)
    covered = float((weight * wall).sum())
    scale = all_ns / covered if covered else 0.0

    def total(values: Float64) -> float | None:
        """None if no fetch tells; a few that do not count as 0."""
        if np.isnan(values).all():
            return None
        return float((weight * np.nan_to_num(values)).sum() * scale)

    def seconds(values: Float64) -> float | None:
        found = total(values)
        return None if found is None else found / 1e9

    running = running_ns(table)
    left = wall - running
    waiting = np.minimum(np.nan_to_num(table.delay_ns), left)
    throttled = np.minimum(np.nan_to_num(table.throttled_ns), waiting)
    reading = np.minimum(np.nan_to_num(table.reading_ns), left - waiting)
    is_told = not np.isnan(table.delay_ns).all()
    reading_is_told = not np.isnan(table.reading_ns).all()
    read, faults = total(table.read_bytes), total(table.major_faults)
    return Usage(
        running_s=seconds(running),
        runnable_s=seconds(waiting - throttled) if is_told else None,
        throttled_s=seconds(throttled) if is_told else None,
        reading_s=seconds(reading) if reading_is_told else None,
        asleep_s=seconds(left - waiting - reading),
        cpu_s=seconds(table.process_cpu_ns),
        read_bytes=None if read is None else round(read),
        major_faults=None if faults is None else round(faults),
        measured=int(measured.sum()),
    )
