"""With how many threads torch computes in a loader's workers, as these told it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainprof.analysis.run.metadata import Sites, integer
from trainprof.analysis.summary.loader import Fetch, WorkerThreads
from trainprof.record.notes import last_record

_KEY: Final = "worker_threads"


def told_threads(environments: Iterable[Any], sites: Sites) -> WorkerThreads | None:
    """Returns what one worker told last, None where it told nothing; nothing in it is trusted.

    Args:
        environments: What it told of itself.
        sites: Names of its places.
    """
    note = last_record(_KEY, (x for x in environments if isinstance(x, dict))).get(_KEY)
    if not isinstance(note, dict):
        return None
    threads = integer(note.get("torch"))
    if threads is None or threads < 1:
        return None
    return WorkerThreads(threads, sites.known(integer(note.get("set_at"))))


def threads_of(
    by_pid: Mapping[int, WorkerThreads | None], fetch: Fetch | None
) -> WorkerThreads | None:
    """Returns what the workers of a loader have; of those that differ the fewest threads of torch.

    Args:
        by_pid: By the pid of each worker of the run.
        fetch: Of the loader.
    """
    pids = [row["pid"] for row in fetch.per_worker] if fetch is not None else []
    known = [threads for pid in pids if (threads := by_pid.get(pid)) is not None]
    return min(known, key=lambda threads: threads.torch, default=None)
