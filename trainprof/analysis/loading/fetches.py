"""The fetches of batches, in the training process and in the loaders' workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.timeline.events import (
    Bool,
    Events,
    Int32,
    Int64,
    joined_tables,
    rows_of,
)
from trainprof.record.schema import COLLATE_SHIFT, FAULTS_SHIFT, NOT_REPORTED, Kind

Float64 = npt.NDArray[np.float64]
Details = npt.NDArray[np.void]

# Loaders inside the datasets of loaders.
_MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class FetchTable:
    """Fetches of all processes, shape (n,). What was not measured is NaN.

    Attributes:
        loader: 0 where it is not known.
        worker: Its number + 1, 0 in the process that trains.
        samples: Requested; 1 if the index is not a list.
        waited_ns: From the `next` around it to its start (the sampler), 0 in a worker.
        stands_for: How many fetches a measured one stands for, 0 for one that was not measured.
        cpu_ns, process_cpu_ns: CPU time of the thread, and of all threads of the process.
        delay_ns: The thread could run and no core was free, or the cgroup was stopped.
        throttled_ns: The cgroup was stopped by its quota.
        reading_ns: The thread waited for block devices.
    """

    loader: Int64
    pid: Int32
    thread: Int32
    worker: Int32
    start_ns: Int64
    samples: Int32
    waited_ns: Int64
    wall_ns: Int64
    collate_ns: Int64
    stands_for: Float64
    cpu_ns: Float64
    process_cpu_ns: Float64
    delay_ns: Float64
    throttled_ns: Float64
    reading_ns: Float64
    read_bytes: Float64
    major_faults: Float64
    batch_bytes: Float64
    batch_tensors: Float64

    def __len__(self) -> int:
        return len(self.loader)

    def rows(self, which: Bool | Int64 | slice) -> FetchTable:
        return rows_of(self, which)

    @staticmethod
    def joined(tables: list[FetchTable]) -> FetchTable:
        return tables[0] if len(tables) == 1 else joined_tables(FetchTable, tables)


def fetch_table(events: Events, details: Details, pid: int, only_loader: int) -> FetchTable:
    """Finds the fetches of one process; `only_loader` is that of those that name none, or 0."""
    tables = []
    for thread in np.unique(events.thread[events.is_kind(Kind.FETCH)]).tolist():
        on_thread = events.thread == thread
        fetch = np.flatnonzero(on_thread & events.is_kind(Kind.FETCH))
        call = np.flatnonzero(on_thread & events.is_kind(Kind.LOADER_NEXT))
        loader = events.site[fetch].astype(np.int64)
        begun = np.searchsorted(call, fetch) - 1
        around = innermost_around(events.end[fetch], events.end[call], begun)
        waited = np.zeros(len(fetch), dtype=np.int64)
        inside = around >= 0
        caller = call[around[inside]]
        waited[inside] = events.start[fetch[inside]] - events.start[caller]
        loader[inside] = np.where(loader[inside] == 0, events.site[caller], loader[inside])
        value, start = events.value[fetch], events.start[fetch]
        tables.append(
            FetchTable(
                loader=np.where(loader == 0, only_loader, loader),
                pid=np.full(len(fetch), pid, dtype=np.int32),
                thread=np.full(len(fetch), thread, dtype=np.int32),
                worker=events.flags[fetch].astype(np.int32),
                start_ns=start,
                samples=(value & ((1 << COLLATE_SHIFT) - 1)).astype(np.int32),
                waited_ns=waited,
                wall_ns=events.end[fetch] - start,
                collate_ns=value >> COLLATE_SHIFT,
                **_measured(details[details["thread"] == thread], start),
            )
        )
    return FetchTable.joined(tables)


def _measured(details: Details, start: Int64) -> dict[str, Any]:
    """Returns the columns that were measured, for fetches of one thread that began at `start`."""

    def column(kind: Kind) -> tuple[Details, Int64]:
        rows = details[details["kind"] == kind]
        order = np.argsort(rows["start"], kind="stable")
        rows = rows[order]
        place = np.minimum(np.searchsorted(rows["start"], start), max(len(rows) - 1, 0))
        if len(rows) == 0:
            return rows, np.full(len(start), -1)
        return rows, np.where(rows["start"][place] == start, place, -1)

    def values(place: Int64, recorded: npt.NDArray[Any]) -> Float64:
        column = np.full(len(place), np.nan)
        column[place >= 0] = recorded[place[place >= 0]]
        return column

    def from_us(recorded: npt.NDArray[Any]) -> Float64:
        return np.where(recorded == NOT_REPORTED, np.nan, recorded.astype(np.float64) * 1000)

    def or_nothing(column: Float64) -> Float64:
        return np.where(np.isnan(column) & (cpu_place >= 0), 0.0, column)

    cpu, cpu_place = column(Kind.FETCH_CPU)
    io, io_place = column(Kind.FETCH_IO)  # written where there was any
    reading, reading_place = column(Kind.FETCH_READING)
    batch, batch_place = column(Kind.FETCH_BATCH)
    return {
        "stands_for": np.nan_to_num(values(cpu_place, cpu["flags"])),
        "cpu_ns": values(cpu_place, cpu["end"] - cpu["start"]),
        "process_cpu_ns": values(cpu_place, cpu["value"]),
        "delay_ns": values(cpu_place, from_us(cpu["site"])),
        "throttled_ns": or_nothing(values(io_place, from_us(io["site"]))),
        "reading_ns": values(reading_place, reading["end"] - reading["start"]),
        "read_bytes": or_nothing(values(io_place, io["value"] & ((1 << FAULTS_SHIFT) - 1))),
        "major_faults": or_nothing(values(io_place, io["value"] >> FAULTS_SHIFT)),
        "batch_bytes": values(batch_place, batch["value"]),
        "batch_tensors": values(batch_place, batch["site"]),
    }


def copying_loaders(events: Events, fetches: FetchTable) -> set[int]:
    """Returns the loaders in whose fetches something was copied to a device, or from one."""
    copies = events.where(events.is_kind(Kind.TRANSFER))
    loaders: set[int] = set()
    for thread in np.unique(copies.thread).tolist():
        begun = np.sort(copies.start[copies.thread == thread])
        start, own = fetches.start_ns, fetches.thread == thread
        before = np.searchsorted(begun, start)
        copied = np.searchsorted(begun, start + fetches.wall_ns) > before
        loaders.update(fetches.loader[own & copied].tolist())
    return loaders


def innermost_around(end: Int64, outer_end: Int64, begun: Int64) -> Int64:
    """Returns the place of the innermost outer interval around each inner one, or -1.

    Args:
        outer_end: In order of start.
        begun: The place of the last outer interval that began before each inner one, or -1.
    """
    around: Int64 = begun.copy()
    is_past = around[:0]
    for _ in range(_MAX_DEPTH):
        # If that ended before, an earlier one may be around it: a loader in a dataset.
        is_past = np.flatnonzero(around >= 0)
        is_past = is_past[outer_end[around[is_past]] < end[is_past]]
        if len(is_past) == 0:
            return around
        around[is_past] -= 1
    around[is_past] = -1
    return around
