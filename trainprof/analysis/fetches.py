"""The making of batches, in the training process and in the loaders' workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainprof.analysis.events import Events, Int64
from trainprof.analysis.statistics import statistics_s
from trainprof.analysis.summary import Fetch
from trainprof.record.schema import Kind

# Loaders inside the datasets of loaders.
_MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class FetchTable:
    """Fetches of all processes, shape (n,): loader id, process, worker + 1, times in ns."""

    loader: Int64
    pid: Int64
    worker: Int64
    wall_ns: Int64
    collate_ns: Int64

    @staticmethod
    def joined(tables: list[FetchTable]) -> FetchTable:
        if len(tables) == 1:
            return tables[0]
        names = ("loader", "pid", "worker", "wall_ns", "collate_ns")
        empty = np.empty(0, dtype=np.int64)
        return FetchTable(
            *(np.concatenate([empty, *(getattr(t, n) for t in tables)]) for n in names)
        )


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
        fetch, collate, call = (
            np.flatnonzero(on_thread & events.is_kind(kind))
            for kind in (Kind.FETCH, Kind.COLLATE, Kind.LOADER_NEXT)
        )
        loader = events.site[fetch].astype(np.int64)
        around = _innermost_around(events, fetch, call)
        served = events.site[call[around]] if len(call) else loader
        loader = np.where((loader == 0) & (around >= 0), served, loader)
        host = _innermost_around(events, collate, fetch)
        is_inside = host >= 0
        length = events.end[collate] - events.start[collate]
        tables.append(
            FetchTable(
                np.where(loader == 0, only_loader, loader),
                np.full(len(fetch), pid, dtype=np.int64),
                events.flags[fetch].astype(np.int64),
                events.end[fetch] - events.start[fetch],
                np.bincount(
                    host[is_inside], weights=length[is_inside], minlength=len(fetch)
                ).astype(np.int64),
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
    wall, collate = table.wall_ns[mine], table.collate_ns[mine]
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
        dataset_s=float((wall - collate).sum() / 1e9),
        collate_s=float(collate.sum() / 1e9),
        per_worker=_per_worker(table.pid[mine], table.worker[mine], wall),
    )


def _per_worker(pid: Int64, worker: Int64, wall_ns: Int64) -> list[dict[str, Any]]:
    pairs, which = np.unique(pid << 8 | worker, return_inverse=True)
    counts = np.bincount(which)
    seconds = np.bincount(which, weights=wall_ns) / 1e9
    return [
        {"worker": (pair & 0xFF) - 1 if pair & 0xFF else None, "pid": pair >> 8, "n": n}
        | {"seconds": total}
        for pair, n, total in zip(pairs.tolist(), counts.tolist(), seconds.tolist(), strict=True)
    ]
