"""Reads files that somebody else names, of which nothing is known."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def contents_of(path: str | Path, most_bytes: int) -> bytes | None:
    """Returns what a file holds; None where it is no plain file, or a larger one.

    To read from a pipe would take the script away from Python, to open it might wait.
    """
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            return None
        return os.read(descriptor, most_bytes)
    except (OSError, ValueError):
        return None
    finally:
        if descriptor is not None:
            os.close(descriptor)
