"""What a process has started, to be ended with it."""

from __future__ import annotations

import contextlib

import psutil


class Descendants:
    """The processes below a process, as they are now; another that gets a pid of theirs is not.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            self._processes = psutil.Process(pid).children(recursive=True)

    def terminate(self) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def have_ended(self) -> bool:
        return not any(map(_is_running, self._processes))


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return _is_running(psutil.Process(pid))
    except psutil.Error:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
