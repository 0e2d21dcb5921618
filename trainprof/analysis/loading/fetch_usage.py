"""Where the time of fetches went: running, waiting for a core, reading, asleep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetches import FetchTable, Float64
from trainprof.analysis.machine.processes import Tick
from trainprof.analysis.statistics.time_weighted import Line
from trainprof.analysis.timeline.events import Bool, Int64


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
    known = running_ns(table) + np.nan_to_num(table.delay_ns) + np.nan_to_num(table.reading_ns)
    return np.maximum(np.nan_to_num(table.wall_ns - known), 0.0)


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
    figures: dict[str, Any] = {
        name: total[name] * scale / (1e9 if name.endswith("_s") else 1) if is_told[name] else None
        for name in _SUMMED[1:]
    }
    for name in ("read_bytes", "major_faults"):
        figures[name] = None if figures[name] is None else round(figures[name])
    return {**figures, "measured": len(measured)}


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


# Few samples of the state say nothing about how long a process was in each.
MIN_STATES: Final = 20
_WAITING: Final = "D"


@dataclass(frozen=True, slots=True)
class StateSamples:
    """In which state processes were met, shape (n,), in order of pid and time.

    Attributes:
        pid: Of the process, whose main thread was looked at.
        t_ns: When.
        is_waiting: It waited for storage (or for something else that can't be interrupted).
    """

    pid: Int64
    t_ns: Int64
    is_waiting: Bool

    @staticmethod
    def of(pids: Collection[int], ticks: Sequence[Tick], lines: Sequence[Line]) -> StateSamples:
        """Returns those of some processes.

        Args:
            lines: The more frequent samples of processes that read, and of what reads for them:
                where there are some of a process, they alone count.
        """
        by_text = {str(pid): pid for pid in pids}
        rows: list[tuple[int, int, bool]] = []
        for line in lines:
            states = line.get("states")
            for text, state in states.items() if isinstance(states, dict) else ():
                if text in by_text:
                    rows.append((by_text[text], line["t_ns"], state == _WAITING))
        others = set(pids) - {pid for pid, _, _ in rows}
        rows += [
            (pid, tick.t_ns, process["state"] == _WAITING)
            for tick in ticks
            for (pid, _), process in tick.processes.items()
            if pid in others and "state" in process
        ]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
        columns = columns[np.lexsort((columns[:, 1], columns[:, 0]))].T
        return StateSamples(columns[0], columns[1], columns[2] > 0)

    def of_process(self, pid: int) -> tuple[Int64, Bool]:
        """Returns times and states of one process."""
        begin, end = np.searchsorted(self.pid, [pid, pid + 1])
        return self.t_ns[begin:end], self.is_waiting[begin:end]


def with_sampled_reading(
    table: FetchTable,
    states_of: Callable[[Collection[int]], StateSamples],
    main_thread: int | None,
) -> FetchTable:
    """Returns fetches with their `reading_ns`, where the kernel did not tell it.

    Of the fetches of a loader that read something, the share of samples that met them waiting is
    the share of their time; of others it is nothing, for they waited for something else.

    Args:
        main_thread: Its number in the log of the process that trains.
    """
    has_read = (np.nan_to_num(table.read_bytes) > 0) | (np.nan_to_num(table.major_faults) > 0)
    if not has_read.any() or not np.isnan(table.reading_ns).all():
        return table
    states = states_of(np.unique(table.pid[has_read]).tolist())
    is_seen = (table.stands_for > 0) & ((table.worker > 0) | (table.thread == main_thread))
    reading = table.reading_ns.copy()
    for loader in np.unique(table.loader[has_read & is_seen]).tolist():
        mine = np.flatnonzero((table.loader == loader) & is_seen)
        read = mine[has_read[mine]]
        met, waiting = _met(table, read, states)
        if met < MIN_STATES:
            continue
        asleep = asleep_ns(table.rows(read))
        waited_ns = waiting / met * float(table.wall_ns[read].sum())
        reading[mine] = 0.0
        reading[read] = asleep * min(waited_ns / max(float(asleep.sum()), 1.0), 1.0)
    return replace(table, reading_ns=reading)


def _met(table: FetchTable, rows: npt.NDArray[np.intp], states: StateSamples) -> tuple[int, int]:
    """Returns how many samples met a process in some fetches, and how many of those waiting."""
    met = waiting = 0
    for pid in np.unique(table.pid[rows]).tolist():
        of_process = rows[table.pid[rows] == pid]
        start = np.sort(table.start_ns[of_process])
        end = np.sort(table.start_ns[of_process] + table.wall_ns[of_process])
        t_ns, is_waiting = states.of_process(pid)
        # In as many fetches as have begun and not ended.
        inside = np.searchsorted(start, t_ns, "right") > np.searchsorted(end, t_ns, "left")
        met += int(inside.sum())
        waiting += int((inside & is_waiting).sum())
    return met, waiting
