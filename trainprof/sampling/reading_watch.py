"""The states of those processes that read from storage, looked at far more often than the rest.

Linux accounts for the time that a thread waits for block devices only where it is told to
(kernel.task_delayacct, off by default since 5.14). In state D a thread waits for storage, local or
NFS; FUSE lets it sleep.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from trainprof.sampling.clock import NS_PER_S
from trainprof.sampling.cores import FILESYSTEM_ROOT
from trainprof.sampling.procfs import read_bytes

WATCH_INTERVAL_S: Final = 0.04
# While nobody reads.
IDLE_INTERVAL_NS: Final = NS_PER_S // 4
# Each interval is so much longer or shorter than its mean, or steps of as many ms would always be
# met in the same place.
_SPREAD: Final = 0.5
_GOLDEN_SHARE: Final = 0.6180339887498949
_COUNTERS: Final = ("read_bytes", "major_faults")
_WAITING, _ASLEEP = "D", "S"
# Of a process with more of them none but the main one is looked at.
_MOST_THREADS: Final = 12


class ReadingWatch:
    """Looks at the main threads of processes that have read lately, and those that read for them.

    Args:
        root: Where `/proc` is looked up.
    """

    def __init__(self, root: Path = FILESYSTEM_ROOT) -> None:
        self._proc = str(root).rstrip("/") + "/proc"
        self._watched: tuple[int, ...] = ()
        self._counted: dict[tuple[int, int], list[int]] = {}
        self._place = 0.0

    def choose(self, processes: Iterable[Mapping[str, Any]]) -> None:
        """Chooses whom to look at until it is called again.

        Args:
            processes: Entries of `ProcfsTree.sample`.
        """
        watched, counted = [], {}
        for entry in processes:
            key = entry["pid"], entry["started_ns"]
            counted[key] = [entry.get(name, 0) for name in _COUNTERS]
            before = self._counted.get(key, [0] * len(_COUNTERS))
            if any(now > then for now, then in zip(counted[key], before, strict=True)):
                watched.append(entry["pid"])
        self._counted, self._watched = counted, tuple(watched)

    def sample(self) -> dict[str, Any] | None:
        """Returns `states`, a letter by pid, as in /proc/<pid>/stat; None while nobody reads."""
        states = {}
        for pid in self._watched:
            state = self._state(f"{pid}/task/{pid}")
            if state == _ASLEEP and self._has_reader(pid):
                state = _WAITING
            if state:
                states[str(pid)] = state
        return {"states": states} if states else None

    def _state(self, thread: str) -> str:
        """Returns the letter of a thread, "" where it is gone."""
        text = read_bytes(f"{self._proc}/{thread}/stat") or b""
        name_end = text.rfind(b")")  # the name may hold any character
        return text[name_end + 2 : name_end + 3].decode("ascii", "replace") if name_end >= 0 else ""

    def _has_reader(self, pid: int) -> bool:
        """Whether one of few threads waits for storage, for the main one, as a rule."""
        try:
            threads = os.listdir(f"{self._proc}/{pid}/task")
        except OSError:
            return False
        return 1 < len(threads) <= _MOST_THREADS and any(
            self._state(f"{pid}/task/{thread}") == _WAITING for thread in threads
        )

    def pause_ns(self, interval_ns: int) -> int:
        """Returns how long to wait for the next look, where that is `interval_ns` on average."""
        if not self._watched:
            return max(interval_ns, IDLE_INTERVAL_NS)
        self._place = (self._place + _GOLDEN_SHARE) % 1.0
        return round(interval_ns * (1 - _SPREAD + 2 * _SPREAD * self._place))
