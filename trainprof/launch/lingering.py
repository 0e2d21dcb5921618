"""Tells when nothing more of a trial is to be measured, and its script does not end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trainprof.record.limit_met import AT_END, processes_at_limit
from trainprof.record.log_reader import EmptyLog, UnreadableLog, log_paths, read_log
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

# Once its code is over a process is gone in a moment, unless it waits for a thread or a child that
# nobody stops. What comes before, as a `finally` that saves or evaluates, may take its time.
AT_END_S: Final = 15.0
AFTER_LIMIT_S: Final = 60.0
_TRAINING: Final = frozenset({Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP})
_ENDED: Final = frozenset({Kind.LIMIT, Kind.PROCESS_END})


class Lingering:
    """Watches the processes of a trial that have met their limit.

    Args:
        directory: Of the run.
        now: A clock, in seconds.
    """

    def __init__(
        self, directory: RunDirectory, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._now = now
        self._since: dict[tuple[int, str], float] = {}

    def is_over(self) -> bool:
        """Whether one has lingered for too long, and none trains; to be asked again and again."""
        now = self._now()
        told = processes_at_limit(str(self._directory.path))
        lingering = [
            pid
            for pid, what in told.items()
            if now - self._since.setdefault((pid, what), now)
            >= (AT_END_S if what == AT_END else AFTER_LIMIT_S)
        ]
        if not lingering:
            return False
        from trainprof.sampling.descendants import is_running

        return any(map(is_running, lingering)) and not self._trains()

    def _trains(self) -> bool:
        """Whether a process that trains has met no limit so far, nor come to its end."""
        trained: set[str] = set()
        ended: set[str] = set()
        for path in log_paths(self._directory.events):
            process = path.name.partition("-")[0]
            try:
                kinds = read_log(path).kinds()
            except EmptyLog:
                continue
            except UnreadableLog:
                return True
            if kinds & _TRAINING:
                trained.add(process)
            if kinds & _ENDED:
                ended.add(process)
        return not trained <= ended
