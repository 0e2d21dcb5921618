"""Names that the supervisor and the profiled process share."""

from __future__ import annotations

import os
from typing import Any, Final

ENV_DIRECTORY: Final = "TRAINPROF_DIR"
ENV_OPTIONS: Final = "TRAINPROF_OPTIONS"
EVENTS: Final = "events"
SOURCES: Final = "sources"
# File with the step count at which all ranks of a directory end.
LAST_STEP: Final = "last_step"
# What ended a run, in its summary and its LIMIT record.
MAX_STEPS: Final = "--max-steps"
MAX_TIME: Final = "--max-time"
# File with the path of a user module named trainprof; sitecustomize.py has this name too.
NAME_TAKEN: Final = "name_taken"
EVENT_LOG_SUFFIX: Final = ".events"
# In place of a secret.
MASK: Final = "***"
UNKNOWN_SITE: Final = "unknown"


def is_named(name: str, pattern: str) -> bool:
    """Returns whether `-f` with this pattern means a function, by its qualified or bare name."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


def site_name(place: Any, cwd: str | None) -> str:
    """Returns `file.py:41` for [file, line, function], else UNKNOWN_SITE.

    Files below `cwd` are relative to it.
    """
    if not isinstance(place, list) or len(place) < 2:
        return UNKNOWN_SITE
    file = str(place[0])
    if cwd and os.path.isabs(file):
        relative = os.path.relpath(file, cwd)
        file = file if relative.startswith(os.pardir) else relative
    return f"{file}:{place[1]}"
