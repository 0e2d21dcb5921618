"""A loader's fetches summed up: in all, by worker, and the samples that took longest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.fetch_usage import usage_of
from trainprof.analysis.loading.fetches import Details, FetchTable, Float64, Int32, innermost_around
from trainprof.analysis.machine.processes import Samples, resources_of
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.loader import Fetch
from trainprof.analysis.timeline.events import Bool, Int64, joined_tables
from trainprof.analysis.timeline.iterations import LoaderIterations
from trainprof.record.schema import Kind, SlowSampleFlag

DEFAULT_SLOW_SAMPLES: Final = 10


@dataclass(frozen=True, slots=True)
class SlowSamples:
    """The samples that took longest in each process, shape (n,).

    Attributes:
        loader, pid, worker: As in `FetchTable`, of the fetch that asked for it.
        start_ns, took_ns: When, and how long.
        value: The index asked for; its place in the batch where that is no number.
        is_index: Which of the two.
        kept_off_ns: For how long the fetch that asked for it could have run and did not: no core
            was free, or its quota was used up. NaN where that was not measured.
    """

    loader: Int64
    pid: Int32
    worker: Int32
    start_ns: Int64
    took_ns: Int64
    value: Int64
    is_index: Bool
    kept_off_ns: Float64

    @staticmethod
    def of_process(details: Details, table: FetchTable) -> SlowSamples:
        """Finds the slow samples of one process, and the fetches that they belong to."""
        tables = []
        details = details[details["kind"] == Kind.SLOW_SAMPLE]
        for thread in np.unique(details["thread"]).tolist():
            samples = details[details["thread"] == thread]
            fetch = np.flatnonzero(table.thread == thread)
            fetch = fetch[np.argsort(table.start_ns[fetch], kind="stable")]
            start = table.start_ns[fetch]
            begun = np.searchsorted(start, samples["start"], side="right") - 1
            around = innermost_around(samples["end"], start + table.wall_ns[fetch], begun)
            samples, rows = samples[around >= 0], fetch[around[around >= 0]]
            tables.append(
                SlowSamples(
                    loader=table.loader[rows],
                    pid=table.pid[rows],
                    worker=table.worker[rows],
                    start_ns=samples["start"],
                    took_ns=samples["end"] - samples["start"],
                    value=samples["value"],
                    is_index=(samples["flags"] & SlowSampleFlag.IS_INDEX) > 0,
                    kept_off_ns=table.delay_ns[rows],
                )
            )
        return joined_tables(SlowSamples, tables)


def fetch_of(
    table: FetchTable,
    p: LoaderIterations,
    slow: SlowSamples,
    samples: Mapping[int, Samples],
    *,
    origin_ns: int,
    slow_samples: int = DEFAULT_SLOW_SAMPLES,
) -> Fetch | None:
    """Sums up the fetches of one loader, None where none was seen."""
    is_mine = table.loader == p.loader
    if not is_mine.any():
        return None
    mine = table if is_mine.all() else table.rows(is_mine)
    told_bytes = mine.batch_bytes[~np.isnan(mine.batch_bytes)]
    workers = [_worker(process, p, _resources(process, samples)) for process in _by_process(mine)]
    per_sample = (mine.wall_ns - mine.collate_ns) / np.maximum(mine.samples, 1)
    return Fetch(
        n=len(mine),
        wall_s=statistics_s(mine.wall_ns),
        **usage_of(mine),
        samples=int(mine.samples.sum(dtype=np.int64)),
        batch_bytes=float(told_bytes.mean()) if len(told_bytes) else None,
        dataset_s=int((mine.wall_ns - mine.collate_ns).sum()) / 1e9,
        collate_s=int(mine.collate_ns.sum()) / 1e9,
        typical_sample_s=float(np.median(per_sample)) / 1e9,
        slow_samples=_slowest(slow, p.loader, slow_samples, origin_ns),
        per_worker=sorted(
            workers, key=lambda row: (row["worker"] is not None, row["worker"], row["pid"])
        ),
        batch_bytes_error=_standard_error(told_bytes),
    )


def _standard_error(sizes: Float64) -> float | None:
    return float(sizes.std(ddof=1)) / len(sizes) ** 0.5 if len(sizes) > 1 else None


def _slowest(slow: SlowSamples, loader: int, count: int, origin_ns: int) -> list[dict[str, Any]]:
    rows = np.flatnonzero(slow.loader == loader)
    rows = rows[np.argsort(-slow.took_ns[rows], kind="stable")][:count]
    slowest = []
    for row in rows.tolist():
        number, value = int(slow.worker[row]), int(slow.value[row])
        kept_off_s = float(min(slow.kept_off_ns[row], slow.took_ns[row]) / 1e9)
        is_index = bool(slow.is_index[row])
        slowest.append(
            {
                "index": value if is_index else None,
                "place_in_batch": None if is_index else value,
                "seconds": float(slow.took_ns[row] / 1e9),
                "kept_off_s": None if np.isnan(slow.kept_off_ns[row]) else kept_off_s,
                "at_s": float((slow.start_ns[row] - origin_ns) / 1e9),
                "worker": number - 1 if number else None,
                "pid": int(slow.pid[row]),
            }
        )
    return slowest


def _by_process(table: FetchTable) -> Iterator[FetchTable]:
    """Yields the fetches of each process, in order of start."""
    order = np.lexsort((table.start_ns, table.worker, table.pid))
    is_next = (np.diff(table.pid[order]) != 0) | (np.diff(table.worker[order]) != 0)
    if not is_next.any() and (np.diff(order) > 0).all():
        yield table  # of a long run without workers the copy would be large
        return
    for rows in np.split(order, np.flatnonzero(is_next) + 1):
        yield table.rows(rows)


def _resources(table: FetchTable, samples: Mapping[int, Samples]) -> dict[str, Any]:
    """Returns what samples tell of a worker while it made batches; {} of the main process."""
    if not table.worker[0]:
        return {}
    start, end = int(table.start_ns[0]), int((table.start_ns + table.wall_ns).max())
    return resources_of(samples.get(int(table.pid[0]), []), start, end)


def _worker(table: FetchTable, p: LoaderIterations, resources: dict[str, Any]) -> dict[str, Any]:
    """Builds the row of one process that makes batches."""
    pid, number = int(table.pid[0]), int(table.worker[0])
    start, wall = table.start_ns, table.wall_ns
    # Of each epoch it was there from its first fetch on; between epochs nobody asks it anything.
    in_epoch = np.searchsorted(p.start, start, side="right") - 1
    served, first_of_epoch = np.unique(in_epoch, return_index=True)
    served, first_of_epoch = served[served >= 0], first_of_epoch[served >= 0]
    asked_ns = int((p.end[served] - start[first_of_epoch]).sum())
    began = int(p.start[served[0]] if len(served) else start[0])
    return {
        "worker": number - 1 if number else None,
        "pid": pid,
        "n": len(wall),
        "seconds": float(wall.sum() / 1e9),
        "mean_s": float(wall.mean() / 1e9),
        "busy_share": min(float(wall.sum()) / asked_ns, 1.0) if number and asked_ns > 0 else None,
        "first_fetch_s": float((start[0] - began) / 1e9) if number else None,
        **usage_of(table),
        **resources,
    }
