"""Where the time of fetches went: what of it a core was busy, waited for, or not asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.fetches import FetchTable, Float64


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over fetches; None where the kernel did not tell.

    The first five partition the fetches' wall time: what is not told is in `asleep_s`.

    Attributes:
        running_s: The thread was on a core, or in a worker others of its process in its place.
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


def usage_of(table: FetchTable) -> Usage:
    """Sums up fetches."""
    measured = np.flatnonzero(table.stands_for > 0)
    if len(measured) == 0:
        return Usage()
    sums = _Sums()
    for begin in range(0, len(measured), _BLOCK):  # of a million rows a copy would be felt
        sums.add(table.rows(measured[begin : begin + _BLOCK]))
    return sums.scaled_to(float(table.wall_ns.sum()), len(measured))


class _Sums:
    """Sums over measured fetches, each times the number of fetches that it stands for, ns."""

    def __init__(self) -> None:
        self._total = dict.fromkeys(_SUMMED, 0.0)
        self._is_told = dict.fromkeys(_SUMMED, False)

    def add(self, table: FetchTable) -> None:
        wall = table.wall_ns.astype(np.float64)
        running = running_ns(table)
        left = wall - running
        waiting = np.minimum(np.nan_to_num(table.delay_ns), left)
        throttled = np.minimum(np.nan_to_num(table.throttled_ns), waiting)
        reading = np.minimum(np.nan_to_num(table.reading_ns), left - waiting)
        delay_is_told = ~np.isnan(table.delay_ns)
        for name, values, is_told in (
            ("wall", wall, None),
            ("running", running, None),
            ("runnable", waiting - throttled, delay_is_told),
            ("throttled", throttled, delay_is_told),
            ("reading", reading, ~np.isnan(table.reading_ns)),
            ("asleep", left - waiting - reading, None),
            ("cpu", table.process_cpu_ns, None),
            ("read_bytes", table.read_bytes, ~np.isnan(table.read_bytes)),
            ("major_faults", table.major_faults, ~np.isnan(table.major_faults)),
        ):
            self._total[name] += float((table.stands_for * np.nan_to_num(values)).sum())
            self._is_told[name] |= is_told is None or bool(is_told.any())

    def scaled_to(self, wall_ns: float, measured: int) -> Usage:
        """Returns them for all fetches, which took `wall_ns`; None for what no fetch tells."""
        covered = self._total["wall"]
        scale = wall_ns / covered if covered else 0.0

        def total(name: str) -> float | None:
            return self._total[name] * scale if self._is_told[name] else None

        def seconds(name: str) -> float | None:
            found = total(name)
            return None if found is None else found / 1e9

        read, faults = total("read_bytes"), total("major_faults")
        return Usage(
            running_s=seconds("running"),
            runnable_s=seconds("runnable"),
            throttled_s=seconds("throttled"),
            reading_s=seconds("reading"),
            asleep_s=seconds("asleep"),
            cpu_s=seconds("cpu"),
            read_bytes=None if read is None else round(read),
            major_faults=None if faults is None else round(faults),
            measured=measured,
        )


_SUMMED: Final = (
    *("wall", "running", "runnable", "throttled", "reading", "asleep", "cpu"),
    *("read_bytes", "major_faults"),
)
_BLOCK: Final = 1 << 16
