"""Trials without a sandbox: each in a scratch copy of the working directory."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

# Larger files are linked: what a script writes to them it writes to the user's.
_LARGEST_COPY_BYTES: Final = 4 << 20
_MOST_COPIED_BYTES: Final = 256 << 20


def scratch_directory(scratch: Path, cwd: Path, *, but_for: Path) -> Path:
    """Makes a working directory for a trial: small files copied, the rest linked.

    Args:
        scratch: An empty directory.
        cwd: The user's working directory.
        but_for: An entry that is left out: the runs' own.
    """
    left = _MOST_COPIED_BYTES
    with os.scandir(cwd) as entries:
        for entry in entries:
            if Path(entry.path) in (but_for, *but_for.parents):
                continue
            with contextlib.suppress(OSError):
                size = entry.stat(follow_symlinks=False).st_size
                if entry.is_file(follow_symlinks=False) and size <= min(left, _LARGEST_COPY_BYTES):
                    shutil.copy2(entry.path, scratch / entry.name)
                    left -= size
                else:
                    (scratch / entry.name).symlink_to(entry.path)
    return scratch
