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


def _killer(process: psutil.Process) -> Callable[[], None]:
    def kill() -> None:
        with contextlib.suppress(psutil.Error):
            process.kill()

    return kill
