"""Runs that a script under trainprof started under trainprofs of their own."""

from __future__ import annotations

import json
from typing import Final

from trainprof.record.files import read_run_file
from trainprof.record.run_directory import RunDirectory

MAX_BYTES: Final = 1 << 20


def inner_runs(directory: RunDirectory) -> list[str]:
    """Returns the directories of the runs inside this one, as they noted them themselves."""
    try:
        lines = read_run_file(directory.inner_runs, MAX_BYTES).splitlines()
    except (OSError, ValueError):
        return []
    found = []
    for line in lines:
        try:
            path = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(path, str):
            found.append(path)
    return found
