"""The epochs over a loader as they were recorded: each batch with its fetch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.timeline.events import Events, Int64, rows_of
from trainprof.analysis.timeline.intervals import EVER, Coverage, collections_on
from trainprof.analysis.timeline.iterations import LEARNING, TRAINING, LoaderIterations
from trainprof.record.schema import Kind

if TYPE_CHECKING:
    from trainprof.analysis.loading.fetches import Details, FetchTable
    from trainprof.analysis.pipeline.bounds import Setting
    from trainprof.analysis.timeline.timeline import Timeline

# Enough for any mean.
_MAX_EPOCHS: Final = 64
# Of a loop that creates an iterator for each batch, which count as one epoch.
_MAX_JOINED: Final = 1_000
# Batches of an epoch: fewer are an iterator for each.
_FEW: Final = 1.5
# Loops that copy ahead hold no more batches than this before they compute with the first.
_IN_HAND: Final = 4
# Of the time between later calls: the loop does less with batches that it skips.
_IDLE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """One epoch as recorded, without first batches that were skipped; shape (n_batches,), ns.

    Attributes:
        number: In the loader's `LoaderIterations`.
        boot_ns: From when its workers were started until each had begun a fetch; None without any.
        starts, ends: Of each `next` that gave a batch.
        wait_ns, fetch_ns: Without garbage collection.
        compute_ns: From its end to the following call, without that and evaluation in between.
        drawn_ns: Part of each spent drawing indices.
        fetch: Rows of the fetch table, in the sampler's order.
    """

    number: int
    boot_ns: int | None
    starts: Int64
    ends: Int64
    wait_ns: Int64
    compute_ns: Int64
    drawn_ns: Int64
    fetch: Int64
    fetch_starts: Int64
    fetch_ends: Int64
    fetch_ns: Int64

    def __len__(self) -> int:
        return len(self.starts)


def recorded_epochs(
    timeline: Timeline,
    fetches: FetchTable,
    p: LoaderIterations,
    setting: Setting,
    metadata: Mapping[str, Any],
) -> list[RecordedEpoch]:
    """Finds the last epochs of a loader of which the fetches are known, in order of time.

    If the training process creates an iterator for each batch, and fetches it itself, they are one
    epoch, without what iterators take to begin.
    """
    chosen = np.flatnonzero(p.trained() if p.trained().any() else p.batches > 0)
    events, is_of_loader = timeline.events, timeline.events.site == p.loader

    def of_loader(*kinds: Kind) -> Events:
        return events.where(is_of_loader & events.is_kind(*kinds))

    nexts, draws = of_loader(Kind.LOADER_NEXT), of_loader(Kind.SAMPLER)
    inits = of_loader(Kind.LOADER_INIT, Kind.LOADER_RESET)
    by_workers = (fetches.worker > 0) == (setting.workers > 0)
    own = np.flatnonzero((fetches.loader == p.loader) & by_workers)
    own = own[np.argsort(fetches.start_ns[own], kind="stable")]
    until = np.append(p.start[1:], np.iinfo(np.int64).max)
    pauses = collections_on(timeline.thread, events)
    computing = events.start[events.is_kind(Kind.FORWARD, *LEARNING)]
    begins = np.stack((inits.start, inits.end), axis=1)
    no_computing = Coverage.of(np.concatenate([timeline.segments, pauses.spans(), begins]), EVER)
    are_joined = setting.workers == 0 and _are_each_a_batch(p, chosen)
    epochs = []
    numbers = chosen[-_MAX_JOINED if are_joined else -_MAX_EPOCHS :].tolist()
    pairs = [(numbers[0], numbers[-1])] if are_joined else [(x, x) for x in numbers]
    for number, last in pairs:
        span = np.array([p.start[number], until[last]])
        mine = nexts.where(np.arange(*np.searchsorted(nexts.start, span)))
        rows = own[slice(*np.searchsorted(fetches.start_ns[own], span))]
        rows = _in_sampler_order(fetches, rows, setting)
        is_ended = bool(p.is_ended[last] and p.end[last] <= until[last])
        if metadata.get("is_iterable") and is_ended and setting.workers:
            rows = _without_the_last_of_each_worker(fetches, rows)
        if len(mine) == 0 or len(rows) < len(mine):
            continue
        rows = rows[: len(mine)]
        asked_again = int(p.end[last] - p.end_ns[last]) if is_ended else None
        compute_ns = _compute_ns(mine, asked_again, no_computing)
        left = 0 if are_joined else skipped_first(mine, computing)
        if number == chosen[0] and len(mine) > left + 1:
            # A run's first step pays once for imports and kernels, which later batches do not.
            compute_ns[left] = min(compute_ns[left], compute_ns[left + 1 :].max())
        begun, took_ns = fetches.start_ns[rows], fetches.wall_ns[rows]
        is_own = setting.workers == 0
        prepared_ns = took_ns - pauses.inside_ns(begun, begun + took_ns) if is_own else took_ns
        wait_ns = mine.end - mine.start - pauses.inside_ns(mine.start, mine.end)
        epochs.append(
            rows_of(
                RecordedEpoch(
                    number=number,
                    boot_ns=_boot_ns(begun, int(p.start[number] + p.init_ns[number]), setting),
                    starts=mine.start,
                    ends=mine.end,
                    wait_ns=np.minimum(wait_ns, prepared_ns) if are_joined else wait_ns,
                    compute_ns=compute_ns,
                    drawn_ns=_inside(draws, mine),
                    fetch=rows,
                    fetch_starts=begun,
                    fetch_ends=begun + took_ns,
                    fetch_ns=prepared_ns,
                ),
                slice(left, None),
            )
        )
    return epochs


def skipped_first(nexts: Events, computing: Int64) -> int:
    """Returns how many of an epoch's first batches were skipped, as resumed training does.

    Args:
        computing: Starts of forwards, backwards and updates of the same thread, in order.
    """
    if len(nexts) < 2:
        return 0
    ends, following = nexts.end[:-1], nexts.start[1:]
    is_used = np.searchsorted(computing, ends) < np.searchsorted(computing, following)
    count = int(np.argmax(is_used)) if is_used.any() else 0
    if count <= _IN_HAND:
        return 0
    between = following - ends
    is_idle = between[:count].mean() <= _IDLE_SHARE * between[count:].mean()
    return count if is_idle else 0


def _boot_ns(begun: Int64, started_ns: int, setting: Setting) -> int | None:
    """Returns when the last of the workers began its first fetch, ns from their start."""
    if not 0 < setting.workers <= len(begun):
        return None
    return int(begun[setting.workers - 1]) - started_ns


def _are_each_a_batch(p: LoaderIterations, chosen: Int64) -> bool:
    """Whether an iterator is created for each batch, and left before it has ended."""
    is_one = p.batches[chosen].sum() < _FEW * len(chosen)
    return len(chosen) > 1 and bool(is_one) and bool(p.is_ended[chosen].mean() < 0.5)


def _in_sampler_order(fetches: FetchTable, rows: Int64, setting: Setting) -> Int64:
    """Puts an epoch's fetches into the order of their indices: workers take turns."""
    if setting.workers == 0:
        return rows
    worker = fetches.worker[rows]
    turn = np.empty(len(worker), dtype=np.int64)
    for number in np.unique(worker).tolist():
        own = worker == number
        turn[own] = np.arange(np.count_nonzero(own))
    return rows[np.lexsort((worker, turn))]


def _without_the_last_of_each_worker(fetches: FetchTable, rows: Int64) -> Int64:
    """Leaves out the fetches in which a worker's share of an iterable dataset came to its end."""
    pairs = {int(worker): place for place, worker in enumerate(fetches.worker[rows].tolist())}
    return np.delete(rows, list(pairs.values()))


def _compute_ns(nexts: Events, asked_again: int | None, left_out: Coverage) -> Int64:
    """Returns the time between the calls; that after the last is the median where none followed."""
    following = np.append(nexts.start[1:], nexts.end[-1] if asked_again is None else asked_again)
    length = following - nexts.end
    length -= left_out.inside_ns(nexts.end, following)
    if asked_again is None and len(length) > 1:
        length[-1] = int(np.median(length[:-1]))
    return np.maximum(length, 0)


def _inside(inner: Events, outer: Events) -> Int64:
    place = np.searchsorted(outer.start, inner.start, side="right") - 1
    is_inside = (place >= 0) & (inner.start < outer.end[np.maximum(place, 0)])
    length = (inner.end - inner.start)[is_inside]
    return np.bincount(place[is_inside], weights=length, minlength=len(outer)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FreeData:
    """Of a trial whose data became free: the loaders, and the first step after, None for none."""

    loaders: frozenset[int]
    first_step: int | None


def free_data(timeline: Timeline, details: Details) -> FreeData | None:
    """Returns what became free of loaders that feed training, None in any other run."""
    switches = details[details["kind"] == Kind.FREE_DATA]
    feeding = {p.loader for p in timeline.loaders if p.role == TRAINING}
    loader_of = [timeline.first_of.get(site, site) for site in switches["site"].tolist()]
    switches = switches[np.isin(loader_of, list(feeding))]
    if not len(switches):
        return None
    is_free = timeline.step_starts >= switches["start"].max()
    first = int(np.argmax(is_free)) if is_free.any() else None
    return FreeData(frozenset(loader_of) & feeding, first)
