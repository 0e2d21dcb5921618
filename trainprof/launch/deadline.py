"""Ends a script at its time limit, with all processes that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from trainprof.record.limit_met import AT_END, has_begun_to_end, processes_at_limit
from trainprof.record.log_reader import EmptyLog, UnreadableLog, log_paths, read_log
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import RECORD, RECORD_BYTES, Kind

# After SIGTERM to the script alone, its processes get theirs; then whatever is left is killed.
ALONE_S: Final = 0.5
GRACE_S: Final = 1.5
POLL_S: Final = 1.0
_CHECK_EVERY_S: Final = 0.02
# A script at its limit saves and evaluates in `finally` and atexit handlers.
ENDING_S: Final = 60.0
# A script that trains ends itself at the next batch, forward or step. It gets this many times the
# longest recent time between two of these, within the bounds.
GAPS: Final = 2.0
SHORTEST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
LAST_RECORDS: Final = 2_000
# Where inside/limits/limit.py checks the time.
_CHECKS: Final = frozenset(
    (Kind.LOADER_NEXT, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
)


class Deadline:
    """Ends a process and its descendants at a time limit.

    `lingers`, called each second, returns whether to end it sooner. `more_time`, called at the
    limit, returns how many seconds to wait before the next call.
    """

    def __init__(
        self,
        pid: int,
        seconds: float | None,
        *,
        lingers: Callable[[], bool] = lambda: False,
        more_time: Callable[[], float] = lambda: 0.0,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._pid = pid
        self._lingers, self._more_time, self._before_end = lingers, more_time, before_end
        self._has_ended = threading.Event()
        self._is_overdue = False
        self._thread: threading.Thread | None = None
        if seconds is not None:
            self._until = time.monotonic() + seconds
            self._thread = threading.Thread(target=self._watch, daemon=True, name="deadline")
            self._thread.start()

    def cancel(self) -> bool:
        """Called when the process has ended; returns whether we ended it."""
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()
        return self._is_overdue

    def _watch(self) -> None:
        if not self._is_too_late():
            return
        self._is_overdue = True
        self._before_end()
        from trainprof.sampling.descendants import Descendants

        # Listed now: after its end they are no longer its descendants.
        started = Descendants(self._pid)
        self._send(signal.SIGTERM)
        self._has_ended.wait(ALONE_S)
        started.send(signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and not (self._has_ended.is_set() and started.have_ended()):
            time.sleep(_CHECK_EVERY_S)
        started.send(signal.SIGKILL)
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if not self._has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _is_too_late(self) -> bool:
        """Waits until the process has ended or its time is over; returns whether it is over."""
        while True:
            left_s = self._until - time.monotonic()
            if self._has_ended.wait(min(max(left_s, 0), POLL_S)):
                return False
            more_s = 0.0
            # A failure here must not keep the script running forever.
            with contextlib.suppress(Exception):
                if self._lingers():
                    return True
                if time.monotonic() >= self._until:
                    more_s = self._more_time()
            if time.monotonic() >= self._until:
                if more_s <= 0:
                    return True
                self._until = time.monotonic() + more_s


class TimeToEnd:
    """How long a script may run after --max-time: to its next step, then to its end."""

    def __init__(
        self, directory: RunDirectory, *, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._directory = directory
        self._now_ns = now_ns
        self._has_waited = False
        self._ending_since_ns: int | None = None

    def __call__(self) -> float:
        now = self._now_ns()
        if has_begun_to_end(str(self._directory.path)):
            if self._ending_since_ns is None:
                self._ending_since_ns = now
            return min(self._ending_since_ns * 1e-9 + ENDING_S - now * 1e-9, POLL_S)
        if self._has_waited:
            return 0.0
        self._has_waited = True
        return time_to_next_step(last_checks(self._directory), now)


def time_to_next_step(checks: list[int], now_ns: int) -> float:
    """Returns the seconds until a script's next step, estimated from its `last_checks`."""
    if not checks:
        return 0.0
    gaps = [after - before for before, after in pairwise(checks)]
    wait_s = max(GAPS * max(gaps, default=0) * 1e-9, SHORTEST_WAIT_S)
    is_at_it = (now_ns - checks[-1]) * 1e-9 <= wait_s
    return min(wait_s, LONGEST_WAIT_S) if is_at_it else 0.0


def last_checks(directory: RunDirectory) -> list[int]:
    """Returns the last times, in ns, at which the run's processes checked the limit, in order."""
    checks: list[int] = []
    for path in log_paths(directory.events):
        try:
            last = read_log(path).body[-LAST_RECORDS * RECORD_BYTES :]
        except UnreadableLog:
            continue
        checks += (end for kind, *_, end, _ in RECORD.iter_unpack(last) if kind in _CHECKS)
    return sorted(checks)


# After its code a process ends at once, unless it waits for a thread or a child that never ends.
# Before that, a `finally` may save or evaluate for longer.
AT_END_S: Final = 15.0
AFTER_LIMIT_S: Final = 60.0
_TRAINING: Final = frozenset({Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP})
_ENDED: Final = frozenset({Kind.LIMIT, Kind.PROCESS_END})


class Lingering:
    """Watches the processes of a trial that reached their limit."""

    def __init__(
        self, directory: RunDirectory, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._now = now
        self._since: dict[tuple[int, str], float] = {}

    def is_over(self) -> bool:
        """Whether a process has lingered for too long and none trains; asked repeatedly."""
        now = self._now()
        at_limit = processes_at_limit(str(self._directory.path))
        lingering = [
            pid
            for pid, what in at_limit.items()
            if now - self._since.setdefault((pid, what), now)
            >= (AT_END_S if what == AT_END else AFTER_LIMIT_S)
        ]
        if not lingering:
            return False
        from trainprof.sampling.descendants import is_running

        return any(map(is_running, lingering)) and not self._trains()

    def _trains(self) -> bool:
        """Whether a process that trains has neither reached a limit nor ended."""
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


# A trial ends before its files leave less than this on their file system, or half of what was free.
_RESERVE_BYTES: Final = 2 << 30


class TrialWatch:
    """Watches the disk space that a trial leaves; `is_full`: the trial had to end for it."""

    def __init__(self, pid: int, cwd: str) -> None:
        # Through the process: in its sandbox this is another file system.
        self._place = f"/proc/{pid}/root{cwd}"
        self._reserve_bytes: int | None = None
        self.is_full = False

    def must_end(self) -> bool:
        """Whether the trial has to end now."""
        with contextlib.suppress(OSError):
            there = os.statvfs(self._place)
            free = there.f_bavail * there.f_frsize
            if self._reserve_bytes is None:
                self._reserve_bytes = min(_RESERVE_BYTES, free // 2)
            self.is_full = self.is_full or free < self._reserve_bytes
        return self.is_full
