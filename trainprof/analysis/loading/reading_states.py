"""How long fetches waited for storage, where only the states of their processes tell it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetch_usage import asleep_ns
from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.machine.processes import Tick
from trainprof.analysis.statistics.time_weighted import Line
from trainprof.analysis.timeline.events import Bool, Int64

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
            pids: Theirs.
            ticks: Samples of the process tree.
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
        table: Fetches of all loaders.
        states_of: Returns the states of some processes.
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
