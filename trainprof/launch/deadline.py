"""Ends a script that takes longer than it was given, with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

# Between SIGTERM and SIGKILL. What a script that is out of time still writes is thrown away.
GRACE_S: Final = 2.0
LOOK_EVERY_S: Final = 1.0


class Deadline:
    """Kills a process once its time is over.

    Args:
        pid: The process.
        seconds: What it is given, None: as long as it takes.
        lingers: Asked now and then whether its time is over sooner, as it does not end.
    """

    def __init__(
        self,
        pid: int,
        seconds: float | None,
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pid = pid
        self._lingers = lingers
        self._seconds = seconds
        self._has_ended = threading.Event()
        self._is_overdue = False
        self._thread: threading.Thread | None = None
        if seconds is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="deadline")
            self._thread.start()

    def cancel(self) -> bool:
        """To be called when the process has ended; tells whether it was its time that was over."""
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()
        return self._is_overdue

    def _watch(self) -> None:
        if not self._is_too_late():
            return
        self._is_overdue = True
        from trainprof.sampling.descendants import descendants

        # Those it started are found now: they lose their parent with it.
        started = descendants(self._pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        self._has_ended.wait(GRACE_S)
        for kill in started:
            kill()
        if not self._has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _is_too_late(self) -> bool:
        """Waits until the process has ended or its time is over, and tells which it was."""
        assert self._seconds is not None
        until = time.monotonic() + self._seconds
        while (left_s := until - time.monotonic()) > 0:
            if self._has_ended.wait(min(left_s, LOOK_EVERY_S)):
                return False
            # What fails here must not let the script go on for ever.
            with contextlib.suppress(Exception):
                if self._lingers():
                    return True
        return not self._has_ended.is_set()
