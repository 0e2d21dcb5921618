"""A loader's workers: whose each one is, which died, and what they recorded of themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from trainprof.analysis.loading.fetches import Details
from trainprof.analysis.run.metadata import Sites, integer, integers
from trainprof.analysis.summary.loader import Fetch, WorkerThreads
from trainprof.analysis.timeline.events import Int64
from trainprof.record.notes import last_record
from trainprof.record.schema import Kind

_THREADS: Final = "worker_threads"
_FIRST: Final = "first_samples"
_ASKED: Final = "asked_for_worker"
# Equal samples do not tell streams apart: of the first ones at least this share must differ.
_DIFFERENT: Final = 0.5
PID_BITS: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """Workers that iterators started, in order of time, shape (n,).

    Attributes:
        start_ns: When the worker's iterator was created.
    """

    loader: Int64
    pid: Int64
    start_ns: Int64

    @staticmethod
    def of(details: Details) -> WorkerTable:
        rows = details[details["kind"] == Kind.WORKER]
        rows = rows[np.argsort(rows["start"], kind="stable")]
        return WorkerTable(*(rows[name].astype(np.int64) for name in ("site", "value", "start")))

    def loader_of(self, pid: int, times: Int64) -> Int64:
        """Returns the loader that a process worked for at some times, 0 if none is known."""
        mine = np.flatnonzero(self.pid == pid)
        place = np.searchsorted(self.start_ns[mine], times, side="right") - 1
        loader = np.concatenate([[0], self.loader[mine]])
        loaders: Int64 = loader[place + 1]
        return loaders


def lost_workers(details: Details, origin_ns: int) -> list[dict[str, Any]]:
    """Returns the workers of a loader that died: pid, number, exit status or signal, and when."""
    rows = details[details["kind"] == Kind.WORKER_LOST]
    lost: dict[int, dict[str, Any]] = {}
    for row in rows.tolist():
        _, flags, _, _, at_ns, _, value = row
        pid, code = value & ((1 << PID_BITS) - 1), value >> PID_BITS
        signed = code - (1 << 16) if code >= 1 << 15 else code
        lost.setdefault(
            pid,
            {
                "pid": pid,
                "worker": flags - 1,
                "status": signed if signed >= 0 else None,
                "signal": -signed if signed < 0 else None,
                "at_s": (at_ns - origin_ns) / 1e9,
            },
        )
    return list(lost.values())


def recorded_threads(environments: Iterable[Any], sites: Sites) -> WorkerThreads | None:
    """Returns how many threads torch has in one process, by its last note."""
    note = _last(_THREADS, environments)
    threads = integer(note.get("torch"))
    if threads is None or threads < 1:
        return None
    return WorkerThreads(threads, sites.known(integer(note.get("set_at"))))


def threads_of(
    by_pid: Mapping[int, WorkerThreads | None], fetch: Fetch | None
) -> WorkerThreads | None:
    """Returns what the workers of a loader have; of those that differ the fewest threads."""
    known = [threads for threads in _of_its_workers(by_pid, fetch) if threads is not None]
    return min(known, key=lambda threads: threads.torch, default=None)


@dataclass(frozen=True, slots=True)
class WorkerStream:
    """What one process recorded of the IterableDataset that it reads.

    Attributes:
        base_seed: Equal for workers of one epoch.
        checksums: Of the first samples in order; empty where they were not compared.
        asked_for_worker: Something called get_worker_info().
    """

    base_seed: int | None
    checksums: tuple[int, ...]
    asked_for_worker: bool


def recorded_stream(environments: Iterable[Any]) -> WorkerStream:
    """Returns what one process recorded; its notes may be damaged."""
    notes = [note for note in environments if isinstance(note, dict)]
    first = _last(_FIRST, notes)
    return WorkerStream(
        base_seed=integer(first.get("base_seed")),
        checksums=tuple(integers(first.get("checksums"))),
        asked_for_worker=any(note.get(_ASKED) is True for note in notes),
    )


def equal_workers(streams: Mapping[int, WorkerStream], fetch: Fetch | None) -> int | None:
    """Returns how many workers of an epoch yield the same first samples, at most.

    Returns:
        1 where all differ; None where no two workers of an epoch can be compared.
    """
    epochs: defaultdict[int | None, list[tuple[int, ...]]] = defaultdict(list)
    for stream in _of_its_workers(streams, fetch):
        samples = stream.checksums
        if samples and len(set(samples)) >= _DIFFERENT * len(samples):
            epochs[stream.base_seed].append(samples)
    compared = [epoch for epoch in epochs.values() if len(epoch) > 1]
    return max((max(map(epoch.count, epoch)) for epoch in compared), default=None)


def has_asked(streams: Mapping[int, WorkerStream], fetch: Fetch | None) -> bool:
    """Whether a process that prepares a loader's batches called get_worker_info()."""
    return any(stream.asked_for_worker for stream in _of_its_workers(streams, fetch))


def _last(key: str, environments: Iterable[Any]) -> Mapping[str, Any]:
    """Returns the note under a key that was written last, {} without one."""
    note = last_record(key, (x for x in environments if isinstance(x, dict))).get(key)
    return note if isinstance(note, dict) else {}


def _of_its_workers(by_pid: Mapping[int, T], fetch: Fetch | None) -> list[T]:
    """Returns what the processes recorded that prepare a loader's batches."""
    pids = {row["pid"] for row in fetch.per_worker} if fetch is not None else set()
    return [recorded for pid, recorded in by_pid.items() if pid in pids]
