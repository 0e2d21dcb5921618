"""Names under which the supervisor and the profiled process find each other."""

from __future__ import annotations

import os
from typing import Any, Final

ENV_DIRECTORY: Final = "TRAINPROF_DIR"
ENV_OPTIONS: Final = "TRAINPROF_OPTIONS"
EVENTS: Final = "events"
SOURCES: Final = "sources"
# Of ranks that share a directory: after how many steps all of them end.
LAST_STEP: Final = "last_step"
# What ended a run, as its summary and its LIMIT record have it.
MAX_STEPS: Final = "--max-steps"
MAX_TIME: Final = "--max-time"
# Path of a module of the script's that is called trainprof; sitecustomize.py has the same name.
NAME_TAKEN: Final = "name_taken"
EVENT_LOG_SUFFIX: Final = ".events"
# Stands in a manifest's command for what looked like a secret.
MASK: Final = "***"


def is_named(name: str, pattern: str) -> bool:
    """Returns whether `-f` with this pattern means a function, by its qualified or bare name."""
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


UNKNOWN_SITE: Final = "unknown"


def site_name(place: Any, cwd: str | None) -> str:
    """Returns `file.py:41` of a SITE text's [file, line, function], UNKNOWN_SITE of anything else.

    Files below `cwd` are shown relative to it.
    """
    if not isinstance(place, list) or len(place) < 2:
        return UNKNOWN_SITE
    file = str(place[0])
    if cwd and os.path.isabs(file):
        relative = os.path.relpath(file, cwd)
        file = file if relative.startswith(os.pardir) else relative
    return f"{file}:{place[1]}"
