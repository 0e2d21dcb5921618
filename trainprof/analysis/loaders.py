"""Loaders, their passes as epochs, and the making of their batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainprof.analysis.events import Bool, Events, Int64, nest
from trainprof.analysis.names import Sites
from trainprof.analysis.passes import EVALUATION, TRAINING, Passes
from trainprof.analysis.statistics import statistics_s
from trainprof.analysis.summary import Epoch, Evaluation, Fetch, Loader
from trainprof.record.schema import Kind

# A loop that makes a new iterator for each batch has as many passes as batches.
MAX_EPOCHS_LISTED: Final = 10_000


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
    for thread in np.unique(events.thread[events.is_kind(Kind.FETCH)]):
        mine = events.where(
            (events.thread == thread) & events.is_kind(Kind.FETCH, Kind.COLLATE, Kind.LOADER_NEXT)
        )
        nesting = nest(mine)
        fetch = np.flatnonzero(mine.is_kind(Kind.FETCH))
        parent = nesting.parent[fetch]
        loader = mine.site[fetch].astype(np.int64)
        loader = np.where((loader == 0) & (parent >= 0), mine.site[parent], loader)
        loader = np.where(loader == 0, only_loader, loader)
        collate = np.zeros(len(mine), dtype=np.int64)
        is_collate = mine.is_kind(Kind.COLLATE) & (nesting.parent >= 0)
        length = mine.end - mine.start
        np.add.at(collate, nesting.parent[is_collate], length[is_collate])
        tables.append(
            FetchTable(
                loader,
                np.full(len(fetch), pid, dtype=np.int64),
                mine.flags[fetch].astype(np.int64),
                length[fetch],
                collate[fetch],
            )
        )
    return FetchTable.joined(tables)


def _fetch(table: FetchTable, loader: int) -> Fetch | None:
    mine = table.loader == loader
    if not mine.any():
        return None
    wall, collate = table.wall_ns[mine], table.collate_ns[mine]
    workers = []
    for pid, worker in sorted(
        set(zip(table.pid[mine].tolist(), table.worker[mine].tolist(), strict=True))
    ):
        its = mine & (table.pid == pid) & (table.worker == worker)
        seconds = float(table.wall_ns[its].sum() / 1e9)
        number = worker - 1 if worker else None
        workers.append({"worker": number, "pid": pid, "n": int(its.sum()), "seconds": seconds})
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
        per_worker=workers,
    )


def loader_of(
    p: Passes,
    facts: Mapping[str, Any],
    calls: Events,
    fetches: FetchTable,
    sites: Sites,
    *,
    on_training_thread: bool,
) -> Loader:
    """Builds a loader's entry.

    Args:
        p: Its passes.
        facts: As probes/loader.py describes it; {} where that text is lost.
        calls: Its own events.
        fetches: Of all loaders.
        sites: Names of places.
        on_training_thread: Whether that thread consumes it.
    """
    later = calls.is_kind(Kind.LOADER_NEXT) & (calls.value > 1)
    sampler = calls.is_kind(Kind.SAMPLER)
    length = calls.end - calls.start
    site = facts.get("site")
    return Loader(
        id=p.loader,
        site=sites[site if isinstance(site, int) else 0],
        role=p.role,
        kind=str(facts.get("kind", "unknown")),
        dataset=facts.get("dataset"),
        length=facts.get("length"),
        num_workers=facts.get("num_workers"),
        prefetch_factor=facts.get("prefetch_factor"),
        persistent_workers=facts.get("persistent_workers"),
        pin_memory=facts.get("pin_memory"),
        batch_size=facts.get("batch_size"),
        start_method=facts.get("start_method"),
        passes=len(p),
        iterations=int(p.batches.sum()),
        init_s=statistics_s(p.init_ns),
        first_batch_s=statistics_s(p.first_ns[p.first_ns >= 0]),
        wait_s=statistics_s(length[later]),
        wait_total_s=float(p.wait_ns.sum() / 1e9),
        end_s=float(p.end_ns.sum() / 1e9),
        sampler_s=float(length[sampler].sum() / 1e9) if sampler.any() else None,
        blocked_s=None,
        ready_share=None,
        fetch=_fetch(fetches, p.loader),
        thread="training" if on_training_thread else "other",
    )


def samples_of(p: Passes, calls: Events) -> int | None:
    """Counts the samples of the batches taken in training passes, from the sampler's index lists.

    Workers are sent indices ahead of time: of each pass the first as many count as batches were
    taken. None where the sampler does not tell sizes.
    """
    drawn = calls.where(calls.is_kind(Kind.SAMPLER))
    if len(drawn) == 0:
        return None
    number = np.searchsorted(p.start, drawn.start, side="right") - 1
    known = number >= 0
    number, sizes = number[known], drawn.value[known]
    first_of_pass = np.searchsorted(number, np.arange(len(p)))
    position = np.arange(len(number)) - first_of_pass[number]
    used = (position < p.batches[number]) & (p.stage[number] == TRAINING)
    return int(sizes[used].sum())


def epochs_of(
    passes: list[Passes],
    calls: Events,
    *,
    origin_ns: int,
    threshold_ns: int,
    step_ends: Int64,
    feeder: int | None,
    training_thread: Bool,
) -> list[Epoch]:
    """Lists the passes of the loader that feeds training, and those that evaluate, in order.

    Args:
        passes: Of all loaders.
        calls: All loaders' events.
        origin_ns: Start of the run.
        threshold_ns: Waits from here on are slow.
        step_ends: Ends of steps, ns.
        feeder: Id of the loader that feeds training, or None.
        training_thread: Per loader of `passes`: consumed by the training thread.
    """
    found: list[tuple[int, Epoch]] = []
    for p, on_thread in zip(passes, training_thread.tolist(), strict=True):
        listed = p.of_stage(EVALUATION) & on_thread
        if p.loader == feeder:
            listed |= p.of_stage(TRAINING) & (p.batches > 0)
        if listed.any():
            found += _listed(p, listed, calls, origin_ns, threshold_ns, step_ends)
    found.sort(key=lambda pair: pair[0])
    counters: dict[str, int] = {}
    epochs = []
    for _, epoch in found[:MAX_EPOCHS_LISTED]:
        index = counters.get(epoch.stage, 0)
        counters[epoch.stage] = index + 1
        epochs.append(_numbered(epoch, index))
    return epochs


def _listed(
    p: Passes,
    listed: Bool,
    calls: Events,
    origin_ns: int,
    threshold_ns: int,
    step_ends: Int64,
) -> list[tuple[int, Epoch]]:
    waits = calls.where(
        (calls.site == p.loader) & calls.is_kind(Kind.LOADER_NEXT) & (calls.value > 1)
    )
    number = np.searchsorted(p.start, waits.start, side="right") - 1
    length = waits.end - waits.start
    slow = length >= threshold_ns
    slow_count = np.bincount(number[slow], minlength=len(p))
    slow_total = np.bincount(number[slow], weights=length[slow], minlength=len(p))
    ends = _pass_ends(p, step_ends)
    steps = np.searchsorted(step_ends, ends, side="right") - np.searchsorted(step_ends, p.start)
    return [
        (
            int(p.start[i]),
            Epoch(
                index=0,
                stage=str(p.stage[i]),
                loader=p.loader,
                seconds=float((ends[i] - p.start[i]) / 1e9),
                data_wait_s=float(p.wait_ns[i] / 1e9),
                first_batch_s=float(p.first_ns[i] / 1e9) if p.first_ns[i] >= 0 else None,
                iterations=int(p.batches[i]),
                slow_batches=int(slow_count[i]),
                slow_total_s=float(slow_total[i] / 1e9),
                slow_excess_s=float((slow_total[i] - threshold_ns * slow_count[i]) / 1e9),
                steps=int(steps[i]),
                start_s=float((p.start[i] - origin_ns) / 1e9),
            ),
        )
        for i in np.flatnonzero(listed).tolist()
    ]


def _pass_ends(p: Passes, step_ends: Int64) -> Int64:
    """Ends of passes; one left without StopIteration reaches to the end of its last step."""
    nexts = np.append(p.start[1:], np.iinfo(np.int64).max)
    if len(step_ends) == 0:
        return p.end
    last = np.searchsorted(step_ends, nexts) - 1
    reach = np.where(last >= 0, step_ends[np.maximum(last, 0)], 0)
    open_training = ~p.is_ended & (p.stage == TRAINING)
    return np.where(open_training, np.maximum(p.end, reach), p.end)


def _numbered(epoch: Epoch, index: int) -> Epoch:
    values = {name: getattr(epoch, name) for name in Epoch.__slots__}
    return Epoch(**{**values, "index": index})


def evaluation_of(passes: list[Passes], segments: Int64, training_thread: Bool) -> Evaluation:
    """Sums up evaluation; its seconds are those of the ledger."""
    batches = count = waited = 0
    ids = []
    for p, on_thread in zip(passes, training_thread.tolist(), strict=True):
        mask = p.of_stage(EVALUATION)
        if not mask.any() or not on_thread:
            continue
        ids.append(p.loader)
        batches += int(p.batches[mask].sum())
        count += int(mask.sum())
        waited += int(p.wait_ns[mask].sum())
    return Evaluation(
        iterations=batches,
        passes=count or len(segments),
        seconds=float((segments[:, 1] - segments[:, 0]).sum() / 1e9),
        data_wait_s=waited / 1e9,
        loaders=ids,
    )
