"""Whether a process may open enough files for us to keep some of them open in it."""

from __future__ import annotations

from typing import Final

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
