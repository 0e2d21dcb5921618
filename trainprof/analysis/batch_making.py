"""A loader's fetches summed up: in all, by worker, and the samples that took longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.fetch_usage import Usage, usage_of
from trainprof.analysis.fetches import Details, FetchTable
from trainprof.analysis.passes import Passes
from trainprof.analysis.statistics import statistics_s
from trainprof.analysis.summary import Fetch
from trainprof.analysis.system_processes import Tick, resources_of
from trainprof.record.schema import Kind, SlowSampleFlag

DEFAULT_SLOW_SAMPLES: Final = 10
# Few samples of a process's state say nothing about how long it was in each.
MIN_STATES: Final = 20
_OF_SAMPLES: Final = ("states", "seconds", "reading_share")


@dataclass(frozen=True, slots=True)
class SlowSamples:
    """The samples that took longest in each process, shape (n,).

    Attributes:
        pid: Of the process.
        start_ns, took_ns: When, and how long.
        value: The index asked for; its place in the batch where that is no number.
        is_index: Which of the two.
    """

    pid: Int64
    start_ns: Int64
    took_ns: Int64
    value: Int64
    is_index: Bool

    @staticmethod
    def of_processes(processes: Sequence[tuple[int, Details]]) -> SlowSamples:
        """Gathers them from (pid, details) of each process."""
        pids, tables = [], []
        for pid, details in processes:
            rows = details[details["kind"] == Kind.SLOW_SAMPLE]
            tables.append(rows)
            pids.append(np.full(len(rows), pid, dtype=np.int64))
        rows = np.concatenate(tables) if tables else np.empty(0, dtype=processes[0][1].dtype)
        return SlowSamples(
            pid=np.concatenate([np.empty(0, dtype=np.int64), *pids]),
            start_ns=rows["start"],
            took_ns=rows["end"] - rows["start"],
            value=rows["value"],
            is_index=(rows["flags"] & SlowSampleFlag.IS_INDEX) > 0,
        )


def fetch_of(
    table: FetchTable,
    p: Passes,
    slow: SlowSamples,
    ticks: list[Tick],
    *,
    origin_ns: int,
    slow_samples: int = DEFAULT_SLOW_SAMPLES,
) -> Fetch | None:
    """Sums up the fetches of one loader, None where none was seen.

    Args:
        table: Fetches of all loaders.
        p: The loader's passes.
        slow: The slowest samples of all loaders.
        ticks: Samples of the process tree.
        origin_ns: The run's start.
        slow_samples: How many of them to list.
    """
    mine = table.loader == p.loader
    if not mine.any():
        return None
    wall, collate_ns = table.wall_ns[mine], int(table.collate_ns[mine].sum())
    samples = table.samples[mine]
    batch_bytes = table.batch_bytes[mine]
    is_told = ~np.isnan(batch_bytes)
    workers = _per_worker(table, mine, p, ticks)
    per_sample = (wall - table.collate_ns[mine]) / np.maximum(samples, 1)
    return Fetch(
        n=len(wall),
        wall_s=statistics_s(wall),
        **asdict(_in_all(usage_of(table, mine), workers)),
        samples=int(samples.sum()),
        batch_bytes=float(batch_bytes[is_told].mean()) if is_told.any() else None,
        dataset_s=(int(wall.sum()) - collate_ns) / 1e9,
        collate_s=collate_ns / 1e9,
        typical_sample_s=float(np.median(per_sample)) / 1e9,
        slow_samples=_slowest(table, mine, slow, slow_samples, origin_ns),
        per_worker=workers,
    )


def _in_all(usage: Usage, workers: list[dict[str, Any]]) -> Usage:
    """Adds the time of reading that was told by workers' states alone."""
    told = [row["reading_s"] for row in workers]
    if usage.reading_s is not None or usage.asleep_s is None or not told or None in told:
        return usage
    reading = min(sum(told), usage.asleep_s)
    return replace(usage, reading_s=reading, asleep_s=usage.asleep_s - reading)


def _slowest(
    table: FetchTable, mine: Bool, slow: SlowSamples, count: int, origin_ns: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for pid in np.unique(table.pid[mine]).tolist():
        fetch = np.flatnonzero(mine & (table.pid == pid))
        fetch = fetch[np.argsort(table.start_ns[fetch], kind="stable")]
        rows = np.flatnonzero(slow.pid == pid)
        place = np.searchsorted(table.start_ns[fetch], slow.start_ns[rows], side="right") - 1
        around = fetch[np.maximum(place, 0)]
        end = table.start_ns[around] + table.wall_ns[around]
        is_here = (place >= 0) & (slow.start_ns[rows] < end)
        for row, inside in zip(rows[is_here].tolist(), around[is_here].tolist(), strict=True):
            number = int(table.worker[inside])
            is_index = bool(slow.is_index[row])
            found.append(
                {
                    "index": int(slow.value[row]) if is_index else None,
                    "place_in_batch": None if is_index else int(slow.value[row]),
                    "seconds": float(slow.took_ns[row] / 1e9),
                    "at_s": float((slow.start_ns[row] - origin_ns) / 1e9),
                    "worker": number - 1 if number else None,
                    "pid": pid,
                }
            )
    return sorted(found, key=lambda sample: -sample["seconds"])[:count]


def _per_worker(
    table: FetchTable, mine: Bool, p: Passes, ticks: list[Tick]
) -> list[dict[str, Any]]:
    processes = np.unique(np.stack([table.pid[mine], table.worker[mine]]), axis=1).T.tolist()
    rows = [
        _worker(table, mine & (table.pid == pid) & (table.worker == number), p, ticks)
        for pid, number in processes
    ]
    return sorted(rows, key=lambda row: (row["worker"] is not None, row["worker"], row["pid"]))


def _worker(table: FetchTable, mine: Bool, p: Passes, ticks: list[Tick]) -> dict[str, Any]:
    """Builds the row of one process that makes batches."""
    pid, number = int(table.pid[mine][0]), int(table.worker[mine][0])
    start, wall = table.start_ns[mine], table.wall_ns[mine]
    end = start + wall
    # Of each pass it was there from its first fetch on; between passes nobody asks it anything.
    served = np.searchsorted(p.start, start, side="right") - 1
    served, first_of_pass = np.unique(served[served >= 0], return_index=True)
    asked_ns = int((p.end[served] - start[first_of_pass]).sum())
    began = int(p.start[served[0]]) if len(served) else int(start.min())
    resources = resources_of(ticks, pid, int(start.min()), int(end.max())) if number else {}
    usage = with_sampled_reading(usage_of(table, mine), resources)
    return {
        "worker": number - 1 if number else None,
        "pid": pid,
        "n": len(wall),
        "seconds": float(wall.sum() / 1e9),
        "mean_s": float(wall.mean() / 1e9),
        "busy_share": min(float(wall.sum()) / asked_ns, 1.0) if number and asked_ns else None,
        "first_fetch_s": float((start.min() - began) / 1e9) if number else None,
        **asdict(usage),
        **{key: value for key, value in resources.items() if key not in _OF_SAMPLES},
    }


def with_sampled_reading(usage: Usage, resources: dict[str, Any]) -> Usage:
    """Takes the time of reading from the samples of a process's state, if nothing else tells it."""
    if usage.reading_s is not None or usage.asleep_s is None:
        return usage
    if resources.get("states", 0) < MIN_STATES:
        return usage
    reading = min(resources["reading_share"] * resources["seconds"], usage.asleep_s)
    return replace(usage, reading_s=reading, asleep_s=usage.asleep_s - reading)
