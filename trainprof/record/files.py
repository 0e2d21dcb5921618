"""Opens files of a run directory, whose content is not trusted."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

# Our own files stay far below. As Python objects a JSON file may take 30 times its size.
LARGEST_JSON_BYTES: Final = 1 << 25
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: opening a fifo would wait for a writer.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | _NO_LINK
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | _NO_LINK


def open_run_file(path: Path) -> int:
    """Opens a file of a run, or of a directory in it; OSError if either is a link."""
    directory = os.open(path.parent, _DIRECTORY_FLAGS)
    try:
        descriptor = os.open(path.name, _FILE_FLAGS, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", path.name)
    return descriptor


def read_run_file(path: Path, max_bytes: int) -> bytes:
    """Returns a file's content; OSError as open_run_file, ValueError above `max_bytes`."""
    with os.fdopen(open_run_file(path), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path.name} is larger than {max_bytes} bytes")
    return content


def read_run_json(path: Path) -> Any:
    """Returns the file's JSON value; None if it is missing, cut off or not ours."""
    try:
        return json.loads(read_run_file(path, LARGEST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def contents_of(path: str | Path, most_bytes: int) -> bytes | None:
    """Returns a file's content; None if it is not a regular file or above `most_bytes`.

    A pipe is not opened: its writer would continue and then get a broken pipe.
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


# A small script's workers and queues need about 20; we keep two open per process.
FEWEST_OPEN_FILES: Final = 64


def too_few_open_files() -> int | None:
    """Returns this process's limit of open files if it is too low to record, else None."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if 0 <= limit < FEWEST_OPEN_FILES else None
