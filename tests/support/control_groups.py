"""Control groups with a limit, where they can be made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def control_group(
    controller: str, first: tuple[str, str], second: tuple[str, str]
) -> Iterator[Path]:
    """Makes a group and yields the file of its limit.

    Args:
        controller: Of version 1, "memory".
        first, second: The file and its content, in version 1 and 2.
    """
    places = ((Path("/sys/fs/cgroup") / controller, first), (Path("/sys/fs/cgroup"), second))
    root, (name, content) = places[0] if places[0][0].is_dir() else places[1]
    group = root / f"trainprof-test-{os.getpid()}"
    try:
        group.mkdir()
        try:
            (group / name).write_text(content)
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield group / name
    group.rmdir()
