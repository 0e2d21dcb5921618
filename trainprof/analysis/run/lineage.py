"""Where a process comes from, and which rank it is, as its log tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.timeline.events import ProcessLog

# Longer ones stand in damaged headers alone.
MAX_RANK_DIGITS: Final = 9


def ancestors_of(log: ProcessLog) -> list[int]:
    """Returns the pids above a process, the nearest first."""
    told = log.header.get("ancestors")
    line = [log.header.get("forked_from"), log.header.get("ppid")]
    line += told if isinstance(told, list) else []
    return [pid for pid in map(integer, line) if pid is not None]


def rank_and_size(
    environments: Collection[Any], logs: Iterable[ProcessLog]
) -> tuple[int | None, int | None]:
    """What the process group says; a launcher's environment where none was joined.

    Args:
        environments: Texts of Topic.ENVIRONMENT, as they were noted.
        logs: Of the process.
    """
    for told in reversed(list(environments)):
        rank = integer(told.get("rank")) if isinstance(told, dict) else None
        if rank is not None:
            return rank, integer(told.get("world_size"))
    for log in logs:
        text = log.header.get("rank")
        if isinstance(text, str) and text.isdecimal() and len(text) <= MAX_RANK_DIGITS:
            return int(text), None
    return None, None
