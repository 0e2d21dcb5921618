"""The making of batches, in the training process and in the loaders' workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainprof.analysis.events import Events, Int64
from trainprof.analysis.statistics import statistics_s
from trainprof.analysis.summary import Fetch
from trainprof.record.schema import COLLATE_SHIFT, Kind

# Loaders inside the datasets of loaders.
_MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class FetchTable:
    """Fetches of all processes, shape (n,).

    Attributes:
        loader: Id, 0 where it is not known.
        pid: Of the process.
        worker: Its number + 1, 0 in the process that trains.
        samples: Asked for; 1 where the index is no list.
        waited_ns: From the `next` around it to its start (the sampler), 0 in a worker.
        wall_ns, collate_ns: Of the fetch, and of the collate that ended it.
    """

    loader: Int64
    pid: Int64
    worker: Int64
    start_ns: Int64
    samples: Int64
    waited_ns: Int64
    wall_ns: Int64
    collate_ns: Int64

    @staticmethod
    def joined(tables: list[FetchTable]) -> FetchTable:
        if len(tables) == 1:
            return tables[0]
        empty = np.empty(0, dtype=np.int64)
        return FetchTable(
            *(np.concatenate([empty, *(getattr(t, n) for t in tables)]) for n in _COLUMNS)
        )


_COLUMNS: Final = tuple(FetchTable.__slots__)


def fetch_table(events: Events, pid: int, only_loader: int) -> FetchTable:
    """Finds the fetches of one process and the loader each one served.

    Args:
        events: Of the process, all threads.
        pid: Its pid.
        only_loader: The loader of fetches that do not say (spawned workers), or 0.
    """
    tables = []
    for thread in np.unique(events.thread[events.is_kind(Kind.FETCH)]).tolist():
        on_thread = events.thread == thread
        fetch = np.flatnonzero(on_thread & events.is_kind(Kind.FETCH))
        call = np.flatnonzero(on_thread & events.is_kind(Kind.LOADER_NEXT))
        loader = events.site[fetch].astype(np.int64)
        around = _innermost_around(events, fetch, call)
        waited = np.zeros(len(fetch), dtype=np.int64)
        inside = around >= 0
        caller = call[around[inside]]
        waited[inside] = events.start[fetch[inside]] - events.start[caller]
        loader[inside] = np.where(loader[inside] == 0, events.site[caller], loader[inside])
        value = events.value[fetch]
        tables.append(
            FetchTable(
                loader=np.where(loader == 0, only_loader, loader),
                pid=np.full(len(fetch), pid, dtype=np.int64),
                worker=events.flags[fetch].astype(np.int64),
                start_ns=events.start[fetch],
                samples=value & ((1 << COLLATE_SHIFT) - 1),
                waited_ns=waited,
                wall_ns=events.end[fetch] - events.start[fetch],
                collate_ns=value >> COLLATE_SHIFT,
            )
        )
    return FetchTable.joined(tables)


def _innermost_around(events: Events, inner: Int64, outer: Int64) -> Int64:
    """Returns for each event of `inner` the place in `outer` of the innermost around it, or -1."""
    found = np.searchsorted(outer, inner) - 1
    for _ in range(_MAX_DEPTH):
        # Where one ended before, an earlier one may reach over it: a loader in a dataset.
        is_past = np.flatnonzero(found >= 0)
        is_past = is_past[events.end[outer[found[is_past]]] < events.end[inner[is_past]]]
        if len(is_past) == 0:
            return found
        found[is_past] -= 1
    found[is_past] = -1
    return found


def fetch_of(table: FetchTable, loader: int) -> Fetch | None:
    """Sums up the fetches of one loader, None where none was seen."""
    mine = table.loader == loader
    if not mine.any():
        return None
    wall, collate_ns = table.wall_ns[mine], int(table.collate_ns[mine].sum())
    return Fetch(
        n=len(wall),
        wall_s=statistics_s(wall),
        running_s=None,
        runnable_s=None,
        throttled_s=None,
        reading_s=None,
        asleep_s=None,
        cpu_s=None,
        read_bytes=None,
        dataset_s=(int(wall.sum()) - collate_ns) / 1e9,
        collate_s=collate_ns / 1e9,
        per_worker=_per_worker(table.pid[mine], table.worker[mine], wall),
    )


def _per_worker(pid: Int64, worker: Int64, wall_ns: Int64) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for its_pid in np.unique(pid).tolist():
        mine = pid == its_pid
        counts = np.bincount(worker[mine])
        seconds = np.bincount(worker[mine], weights=wall_ns[mine]) / 1e9
        found += [
            {
                "worker": number - 1 if number else None,
                "pid": its_pid,
                "n": int(counts[number]),
                "seconds": float(seconds[number]),
            }
            for number in np.flatnonzero(counts).tolist()
        ]
    return found
