"""What the modules were made of that a script had imported from elsewhere than beside it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from trainprof.launch.sources import digest_of
from trainprof.record.masking import masked_text
from trainprof.record.plain_file import contents_of

# As its processes write it; of more than that somebody else has written.
_LARGEST_TOLD: Final = 1 << 20
_MOST_BYTES: Final = 8 << 20
# Nobody waits longer for it once the script has ended, where files lie on a slow disk.
_MOST_SECONDS: Final = 0.5


def imported_sources(told: Path, *, known: Collection[str], since_ns: int) -> dict[str, str]:
    """Returns the first characters of each file's SHA-256, by its module's name.

    A file that was changed since the run began is left out: it may be another than was imported.

    Args:
        told: What the run's processes have written of them; taken away.
        known: Digests of files that are told of already.
        since_ns: `time.time_ns` of the run's start.
    """
    text = contents_of(told, _LARGEST_TOLD)
    if text is None:
        return {}
    with contextlib.suppress(OSError):
        told.unlink()
    found: dict[str, str] = {}
    left, until_s = _MOST_BYTES, time.monotonic() + _MOST_SECONDS
    for name, file in _modules(text):
        if time.monotonic() > until_s:
            break
        source = contents_of(file, left) if _is_older(file, since_ns) else None
        if source is None or masked_text(name) != name:
            continue
        left -= len(source)
        digest = digest_of(source)
        if digest not in known:
            found.setdefault(name, digest)
    return found


def _modules(text: bytes) -> Iterator[tuple[str, str]]:
    """Yields name and file of each module, of whatever can be read."""
    for line in text.splitlines():
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, file in told.items() if isinstance(told, dict) else ():
            if isinstance(file, str):
                yield name, file


def _is_older(file: str, since_ns: int) -> bool:
    try:
        return os.stat(file).st_mtime_ns < since_ns
    except (OSError, ValueError):
        return False
