"""Loaders' workers over time: when they prepare a batch, and when they are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.charts.events import loader_line
from trainprof.analysis.loading.workers import WorkerTable
from trainprof.analysis.summary.charts import UNKNOWN_PERCENT, Lane
from trainprof.analysis.timeline.intervals import Coverage

if TYPE_CHECKING:
    from trainprof.analysis.loading.batch_preparation import BatchPreparation
    from trainprof.analysis.loading.fetches import FetchTable
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.statistics.step_noise import Floats
    from trainprof.analysis.summary.charts import Bytes
    from trainprof.analysis.timeline.events import Int64
    from trainprof.analysis.timeline.iterations import LoaderIterations

_BINS: Final = 1_000
_MOST_LANES: Final = 128


def lanes_of(run: Analysed, preparation: BatchPreparation) -> tuple[Int64, list[Lane]]:
    """Returns edges in ns and the lanes; of many loaders those whose fetches take longest."""
    window = run.timeline.window
    edges = np.linspace(0, window.end - window.start, _BINS + 1).astype(np.int64) + window.start
    fetches, workers = preparation.fetches, WorkerTable.of(preparation.details)
    in_worker = np.flatnonzero((fetches.worker > 0) & (fetches.loader > 0))
    if len(in_worker) == 0 or window.end - window.start < _BINS:
        return edges[:1], []
    order = (fetches.start_ns, fetches.worker, fetches.loader)
    in_worker = in_worker[np.lexsort([column[in_worker] for column in order])]
    number, loader = fetches.worker[in_worker], fetches.loader[in_worker]
    begins = (np.diff(loader, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0)
    parts = np.split(in_worker, np.flatnonzero(begins)[1:])
    spent = {int(x): int(fetches.wall_ns[in_worker][loader == x].sum()) for x in np.unique(loader)}
    # Sorting is stable: workers of a loader stay in order.
    parts.sort(key=lambda rows: -spent[int(fetches.loader[rows[0]])])
    iterations = {p.loader: p for p in run.timeline.loaders}
    return edges, [
        _lane(run, edges, fetches.rows(rows), workers, iterations) for rows in parts[:_MOST_LANES]
    ]


def _lane(
    run: Analysed,
    edges: Int64,
    own: FetchTable,
    workers: WorkerTable,
    iterations: dict[int, LoaderIterations],
) -> Lane:
    """Returns the lane of one or more fetches of a loader's worker, in order of time."""
    loader, bounds = int(own.loader[0]), (int(edges[0]), int(edges[-1]))
    ends = own.start_ns + own.wall_ns
    fetching = Coverage.of(np.stack((own.start_ns, ends), axis=1), bounds)
    here = Coverage.of(_lives(own, ends, workers, iterations.get(loader)), bounds)
    here_ns = np.diff(here.until(edges))
    fetching_ns, share = np.diff(fetching.until(edges)), _running_shares(own)
    running_ns = fetching_ns.astype(np.float64)
    if share is not None:
        # Each fetch ran for its share of the time, evenly.
        starts = np.maximum.accumulate(own.start_ns)
        at = np.stack((starts, np.maximum(ends, starts)), axis=1).ravel()
        ran = np.cumsum(share * (at[1::2] - at[::2]))
        steps = np.stack((ran - share * (at[1::2] - at[::2]), ran), axis=1).ravel()
        running_ns = np.diff(np.interp(edges - edges[0], at - edges[0], steps))
    running = _percent(running_ns, here_ns)
    fetched = _percent(fetching_ns.astype(np.float64), here_ns)
    is_known = here_ns > 0
    return Lane(
        loader=loader,
        name=f"{loader_line(run, loader)} worker {int(own.worker[0]) - 1}",
        running=np.where(is_known, np.minimum(running, fetched), running),
        blocked=np.where(is_known, np.maximum(fetched, running) - running, fetched),
        is_split=share is not None,
    )


def _lives(own: FetchTable, ends: Int64, workers: WorkerTable, p: LoaderIterations | None) -> Int64:
    """Returns from when to when there was a worker, shape (n, 2), by its processes.

    A process ends with the iteration of its last fetch.
    """
    lives = []
    for pid in np.unique(own.pid).tolist():
        rows = np.flatnonzero(own.pid == pid)
        first, last = int(own.start_ns[rows[0]]), int(ends[rows].max())
        started = workers.start_ns[(workers.pid == pid) & (workers.start_ns <= first)]
        if p is not None:
            iteration = int(p.number_at(own.start_ns[rows[-1:]])[0])
            last = max(last, int(p.end[iteration])) if iteration >= 0 else last
        lives.append((int(started.max()) if len(started) else first, last))
    return np.array(lives, dtype=np.int64)


def _running_shares(own: FetchTable) -> Floats | None:
    """Returns the share of each fetch on a core; one that was not measured is like those around.

    None where none was measured.
    """
    measured = np.flatnonzero(~np.isnan(own.cpu_ns) & (own.wall_ns > 0))
    if len(measured) == 0:
        return None
    share = np.clip(own.cpu_ns[measured] / own.wall_ns[measured], 0.0, 1.0)
    times = own.start_ns - own.start_ns[0]
    around: Floats = np.interp(times, times[measured], share)
    return around


def _percent(part_ns: Floats, whole_ns: Int64) -> Bytes:
    percent = np.full(len(whole_ns), UNKNOWN_PERCENT, dtype=np.uint8)
    known = whole_ns > 0
    percent[known] = np.clip(np.rint(100 * part_ns[known] / whole_ns[known]), 0, 100)
    return percent
