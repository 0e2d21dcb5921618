"""What a process has started, to be ended with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil


def descendants(pid: int) -> list[Callable[[], None]]:
    """Returns for each process below `pid` what kills it, and no other that has its number then."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).children(recursive=True)
    return [_killer(process) for process in found]


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _killer(process: psutil.Process) -> Callable[[], None]:
    def kill() -> None:
        with contextlib.suppress(psutil.Error):
            process.kill()

    return kill
