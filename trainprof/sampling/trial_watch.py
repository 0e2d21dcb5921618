"""Watches the room that a trial's files leave, from outside."""

from __future__ import annotations

import contextlib
import os
from typing import Final

# A trial ends before its files leave less than this on their file system, or half of what was free.
_RESERVE_BYTES: Final = 2 << 30


class TrialWatch:
    """Asked once a second or so while a trial runs.

    Args:
        pid: Its script's process.
        cwd: Where it runs.

    Attributes:
        is_full: The trial had to end, or the file system that takes its files would be full.
    """

    def __init__(self, pid: int, cwd: str) -> None:
        # By way of the process: in its sandbox this is another file system.
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
