"""Whose descendant a process is: later, when all have ended, nothing tells any more."""

from __future__ import annotations

import os
from typing import Final

MAX_ANCESTORS: Final = 16


def ancestors() -> list[int]:
    """Returns the pids of the parent, its parent and so on; of the parent alone without /proc."""
    found = [os.getppid()]
    while found[-1] > 1 and len(found) < MAX_ANCESTORS:
        parent = _parent_of(found[-1])
        if parent is None:
            break
        found.append(parent)
    return found


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The name before it may hold blanks and parentheses.
            return int(stat.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
