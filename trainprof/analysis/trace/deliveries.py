"""Which `next()` returned the batch of which fetch in a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.loading.workers import WorkerTable
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.timeline.events import joined_tables, rows_of
from trainprof.analysis.timeline.iterations import find_iterations
from trainprof.record.schema import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainprof.analysis.run.training_process import TrainingProcess
    from trainprof.analysis.timeline.events import Bool, Events, Int64
    from trainprof.analysis.timeline.iterations import LoaderIterations

_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Fetches of workers and the calls that returned their batches, shape (n,), ns.

    Attributes:
        pid: The worker's.
        start_ns, end_ns: Of the fetch.
        next_start_ns, next_end_ns: Of the call, which ends after the fetch.
        batch: Its number in its epoch, from 1.
    """

    pid: Int64
    start_ns: Int64
    end_ns: Int64
    next_start_ns: Int64
    next_end_ns: Int64
    batch: Int64


@dataclass(frozen=True, slots=True)
class _Fetches:
    """Fetches of workers, shape (n,); `created_ns` is when the worker's iterator was."""

    loader: Int64
    pid: Int64
    worker: Int64
    start_ns: Int64
    end_ns: Int64
    created_ns: Int64


def deliveries_of(process: TrainingProcess) -> Deliveries:
    """Finds them by order: workers take turns, and a loader returns their batches in that order.

    Left out is every epoch in which that is not certain: see `_of_loader`.
    """
    fetches, tables = _fetches(process), []
    for p in find_iterations(process.events):
        metadata = process.metadata.loader(p.loader)
        own = rows_of(fetches, fetches.loader == p.loader)
        # Without in_order, the first batch that is ready is returned.
        if len(own.pid) and p.turns is None and metadata.get("in_order") is not False:
            tables.append(_of_loader(p, own, metadata, process.events))
    return joined_tables(Deliveries, tables)


def _fetches(process: TrainingProcess) -> _Fetches:
    workers = WorkerTable.of(process.details)
    with_workers = process.metadata.loaders_with_workers()
    only = with_workers[0] if len(with_workers) == 1 else 0
    tables = []
    for log in process.workers:
        events = log.events.where(log.events.is_kind(Kind.FETCH) & (log.events.flags > 0))
        pid = log.pid or 0
        loader = workers.loader_of(pid, events.start)
        mine = workers.start_ns[workers.pid == pid]
        place = np.searchsorted(mine, events.start, side="right")
        tables.append(
            _Fetches(
                loader=np.where(loader > 0, loader, only),
                pid=np.full(len(events), pid),
                worker=events.flags.astype(np.int64) - 1,
                start_ns=events.start,
                end_ns=events.end,
                created_ns=np.append(-1, mine)[place],
            )
        )
    return joined_tables(_Fetches, tables)


def _of_loader(
    p: LoaderIterations, fetches: _Fetches, metadata: Mapping[str, Any], events: Events
) -> Deliveries:
    """Matches the fetches of one loader.

    Of an epoch that persistent workers continue, and whose last one was left early, fetches of that
    one may come first: such an epoch is left out. In an iterable dataset workers may end at
    different times, after which the order is unknown. As a check, no call may end before the fetch
    that it is matched with.
    """
    workers = integer(metadata.get("num_workers")) or 0
    epoch, turn = _turns(p, fetches)
    is_known = (epoch >= 0) & (fetches.worker < workers)
    calls = events.where(events.is_kind(Kind.LOADER_NEXT, Kind.LOADER_ERROR))
    calls = calls.where(calls.site == p.loader)
    in_epoch, number = _numbered(p.number_at(calls.start))
    failed = np.full(len(p), _NEVER)
    is_error = calls.is_kind(Kind.LOADER_ERROR)
    np.minimum.at(failed, in_epoch[is_error], calls.start[is_error])
    # StatefulDataLoader may continue in the middle of an epoch.
    is_whole = np.ones(len(p), dtype=bool)
    is_whole[in_epoch[(number == 0) & (calls.value > 1)]] = False
    fetched = np.bincount(epoch[is_known], minlength=len(p))
    is_left_early = ~p.is_ended & (fetched != p.batches)
    is_whole[1:] &= ~(p.is_resumed[1:] & is_left_early[:-1])
    batch = turn * max(workers, 1) + fetches.worker
    row = np.full(len(batch), -1)
    keys, wanted = in_epoch << 40 | number, epoch << 40 | batch
    if len(calls):
        row = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        is_known &= (keys[row] == wanted) & is_whole[epoch] & (calls.start[row] < failed[epoch])
        if metadata.get("is_iterable"):
            is_known &= turn < _complete_turns(epoch, fetches.worker, workers, len(p))[epoch]
        is_late = is_known & (calls.end[row] < fetches.end_ns)
        is_known &= ~np.isin(epoch, epoch[is_late])
    else:
        is_known[:] = False
    row = row[is_known]
    return Deliveries(
        pid=fetches.pid[is_known],
        start_ns=fetches.start_ns[is_known],
        end_ns=fetches.end_ns[is_known],
        next_start_ns=calls.start[row],
        next_end_ns=calls.end[row],
        batch=batch[is_known] + 1,
    )


def _turns(p: LoaderIterations, fetches: _Fetches) -> tuple[Int64, Int64]:
    """Returns the epoch of each fetch, -1 if unknown, and its number among its worker's."""
    epoch = p.number_at(fetches.start_ns)
    # An iterator creates its workers before it is there.
    created = np.searchsorted(p.start + p.init_ns, fetches.created_ns, side="right")
    is_resumed = np.append(p.is_resumed & (np.arange(len(p)) > 0), False)[epoch]
    is_of_old_iterator = ~is_resumed & (fetches.created_ns >= 0) & (created != epoch)
    epoch = np.where(is_of_old_iterator, created, epoch)
    order = np.lexsort((fetches.start_ns, fetches.worker, epoch))
    turn = np.empty(len(epoch), dtype=np.int64)
    turn[order] = _numbered(epoch[order] * 256 + fetches.worker[order])[1]
    return epoch, turn


def _numbered(groups: Int64) -> tuple[Int64, Int64]:
    """Returns groups, whose equal values are in a row, and each value's place among its equals."""
    begins = np.flatnonzero(np.diff(groups, prepend=-(1 << 62)))
    lengths = np.diff(np.append(begins, len(groups)))
    return groups, np.arange(len(groups)) - np.repeat(begins, lengths)


def _complete_turns(epoch: Int64, worker: Int64, workers: int, epochs: int) -> Int64:
    """Returns in how many turns of an epoch surely every worker had a batch, shape (epochs,)."""
    counts = np.zeros((epochs, workers), dtype=np.int64)
    is_known = (epoch >= 0) & (worker < workers)
    np.add.at(counts, (epoch[is_known], worker[is_known]), 1)
    complete: Int64 = counts.min(axis=1) - 1 if workers else np.zeros(epochs, dtype=np.int64)
    return complete


def batches_of(deliveries: Deliveries, pid: int, starts: Int64) -> Int64:
    """Returns the number of the batch of each fetch of a worker, -1 where unknown."""
    own: Bool = deliveries.pid == pid
    known = deliveries.start_ns[own]
    order = np.argsort(known, kind="stable")
    batches = np.full(len(starts), -1)
    if len(order):
        place = np.minimum(np.searchsorted(known[order], starts), len(order) - 1)
        is_known = known[order][place] == starts
        batches[is_known] = deliveries.batch[own][order][place[is_known]]
    return batches
