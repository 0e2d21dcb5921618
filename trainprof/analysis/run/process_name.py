"""Names of a run's processes (main, rank 1, worker 0, process 4711), and their parents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.record.schema import Kind, Topic

# Longer ones are in damaged headers only.
MAX_RANK_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process by its role; several may share a name, as workers are recreated each epoch.

    Attributes:
        rank: In its group, or of the process that started it; None outside one.
        worker: Its number in its loader, or None.
        pid: Of any other process; else None.
    """

    rank: int | None = None
    worker: int | None = None
    pid: int | None = None

    @property
    def label(self) -> str:
        parts = (("rank", self.rank), ("worker", self.worker), ("process", self.pid))
        words = [f"{kind} {number}" for kind, number in parts if number is not None]
        return " ".join(words) or "main"

    @property
    def order(self) -> tuple[int, int, int]:
        """Main first, then ranks, each before its workers."""
        numbers = (self.rank, self.worker, self.pid)
        rank, worker, pid = (-1 if number is None else number for number in numbers)
        return rank, pid, worker


def process_names(logs: Sequence[ProcessLog]) -> list[ProcessName]:
    by_pid = {log.pid: log for log in logs if log.pid is not None}
    return [_name(log, by_pid) for log in logs]


def _name(log: ProcessLog, by_pid: Mapping[int, ProcessLog]) -> ProcessName:
    above = [by_pid[pid] for pid in ancestors_of(log) if pid in by_pid and by_pid[pid] is not log]
    own = _rank(log)
    rank = next((known for known in (own, *map(_rank, above)) if known is not None), None)
    worker = _worker(log)
    if worker is not None:
        return ProcessName(rank, worker)
    is_rank = own is not None and own not in map(_rank, above)
    if log.role == "script" or is_rank:
        return ProcessName(rank)
    return ProcessName(rank, None, log.pid or 0)


def _worker(log: ProcessLog) -> int | None:
    """A worker's fetches carry its number, counted from 1."""
    numbers = log.events.flags[log.events.is_kind(Kind.FETCH)]
    worker = int(numbers[0]) if len(numbers) else 0
    return worker - 1 if worker and np.all(numbers == worker) else None


def _rank(log: ProcessLog) -> int | None:
    rank, _ = rank_and_size(log.texts_of(Topic.ENVIRONMENT).values(), [log])
    return rank


def ancestors_of(log: ProcessLog) -> list[int]:
    """Returns the pids above a process, the nearest first."""
    ancestors = log.header.get("ancestors")
    line = [log.header.get("forked_from"), log.header.get("ppid")]
    line += ancestors if isinstance(ancestors, list) else []
    return [pid for pid in map(integer, line) if pid is not None]


def rank_and_size(
    environments: Collection[Any], logs: Iterable[ProcessLog]
) -> tuple[int | None, int | None]:
    """Returns rank and size of the process group, else of the launcher's environment."""
    for note in reversed(list(environments)):
        rank = integer(note.get("rank")) if isinstance(note, dict) else None
        if rank is not None:
            return rank, integer(note.get("world_size"))
    for log in logs:
        text = log.header.get("rank")
        if isinstance(text, str) and text.isdecimal() and len(text) <= MAX_RANK_DIGITS:
            return int(text), None
    return None, None
