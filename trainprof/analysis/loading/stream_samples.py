"""Whether workers of one epoch yield the same samples of an IterableDataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.summary.loader import Fetch
from trainprof.record.notes import last_record

_FIRST: Final = "first_samples"
_ASKED: Final = "asked_for_worker"
# A stream of equal samples tells nothing: of the first ones this share differ.
_DIFFERENT: Final = 0.5


@dataclass(frozen=True, slots=True)
class WorkerStream:
    """What one process recorded of the stream that it reads.

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
    first = last_record(_FIRST, notes).get(_FIRST)
    first = first if isinstance(first, dict) else {}
    checksums = first.get("checksums")
    numbers = [integer(x) for x in checksums] if isinstance(checksums, list) else []
    return WorkerStream(
        base_seed=integer(first.get("base_seed")),
        checksums=tuple(x for x in numbers if x is not None),
        asked_for_worker=any(note.get(_ASKED) is True for note in notes),
    )


def equal_workers(streams: Mapping[int, WorkerStream], fetch: Fetch | None) -> int | None:
    """Returns how many workers of an epoch yield the same first samples, at most.

    Args:
        streams: By the pid of each process.
        fetch: Of the loader.

    Returns:
        1 where all differ; None where no two workers of an epoch can be compared.
    """
    epochs: defaultdict[int | None, list[tuple[int, ...]]] = defaultdict(list)
    for stream in _of_loader(streams, fetch):
        samples = stream.checksums
        if samples and len(set(samples)) >= _DIFFERENT * len(samples):
            epochs[stream.base_seed].append(samples)
    compared = [epoch for epoch in epochs.values() if len(epoch) > 1]
    return max((max(map(epoch.count, epoch)) for epoch in compared), default=None)


def has_asked(streams: Mapping[int, WorkerStream], fetch: Fetch | None) -> bool:
    """Whether a process that prepares a loader's batches called get_worker_info()."""
    return any(stream.asked_for_worker for stream in _of_loader(streams, fetch))


def _of_loader(streams: Mapping[int, WorkerStream], fetch: Fetch | None) -> list[WorkerStream]:
    pids = {row["pid"] for row in fetch.per_worker} if fetch is not None else set()
    return [stream for pid, stream in streams.items() if pid in pids]
