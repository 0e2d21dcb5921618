"""Opens what lies in a run directory, where anybody may have put anything."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

# What we wrote ourselves stays far below; what is larger is not ours. As objects the worst that a
# file can hold takes about thirty times its size.
LARGEST_JSON_BYTES: Final = 1 << 25
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
# Opening a fifo without it waits for a writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | _NO_LINK
_ROOM_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | _NO_LINK


def open_run_file(path: Path) -> int:
    """Opens a file of a run, or in one of its rooms; OSError if either is a link."""
    room = os.open(path.parent, _ROOM_FLAGS)
    try:
        descriptor = os.open(path.name, _FILE_FLAGS, dir_fd=room)
    finally:
        os.close(room)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", path.name)
    return descriptor


def read_run_file(path: Path, max_bytes: int) -> bytes:
    """Returns a file of a run; OSError as open_run_file, ValueError above `max_bytes`."""
    with os.fdopen(open_run_file(path), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path.name} is larger than {max_bytes} bytes")
    return content


def read_run_json(path: Path) -> Any:
    """Returns the file's JSON value, None where it is missing, cut off or not one of ours."""
    try:
        return json.loads(read_run_file(path, LARGEST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def contents_of(path: str | Path, most_bytes: int) -> bytes | None:
    """Returns what a file holds; None where it is no plain file, or a larger one.

    A pipe is not opened: who writes to it would go on, and find nobody to read.
    """
    descriptor = None
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return None
        return os.read(descriptor, most_bytes)
    except (OSError, ValueError):
        return None
    finally:
        if descriptor is not None:
            os.close(descriptor)


# Workers and queues of a small script need about 20; we keep two open in each process that records.
FEWEST_OPEN_FILES: Final = 64


def too_few_open_files() -> int | None:
    """Returns how many files this process may open where those are too few to record, else None."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if 0 <= limit < FEWEST_OPEN_FILES else None
