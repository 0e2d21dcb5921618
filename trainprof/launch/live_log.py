"""Follows a script's event log while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainprof.record.log_reader import join_texts, log_paths
from trainprof.record.schema import HEADER_BYTES, RECORD, RECORD_BYTES, Kind, Topic

_MAX_READ_BYTES: Final = 1 << 24

# kind, site, start ns, end ns, value
LiveRecord = tuple[int, int, int, int, int]


class LiveLog:
    """Yields what one process has written since the last call.

    Attributes:
        pid: The process whose logs are followed; a script that re-executes itself has several.
    """

    def __init__(self, events: Path, pid: int) -> None:
        self._events = events
        self._prefix = f"{pid}-"
        self._offsets: dict[Path, int] = {}
        self._texts: list[bytes] = []

    def read(self) -> Iterator[LiveRecord]:
        """Yields the new records in the order in which they were written."""
        for path in log_paths(self._events):
            if path.name.startswith(self._prefix):
                yield from self._read_file(path)

    def text(self, number: int, topic: Topic) -> Any:
        """Returns a text's JSON value, None while it is not known."""
        found = join_texts(self._texts).get(number)
        if found is None or found[0] is not topic:
            return None
        try:
            return json.loads(found[1])
        except (ValueError, RecursionError):
            return None

    def _read_file(self, path: Path) -> Iterator[LiveRecord]:
        offset = self._offsets.get(path, HEADER_BYTES)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            return
        # The rest of the last chunk is allocated, and zero; the last record may not be whole yet.
        written = max(0, (len(data.rstrip(b"\0")) - 1) // RECORD_BYTES * RECORD_BYTES)
        self._offsets[path] = offset + written
        for place in range(0, written, RECORD_BYTES):
            kind, _flags, _thread, site, start, end, value = RECORD.unpack_from(data, place)
            if kind == Kind.TEXT:
                self._texts.append(data[place : place + RECORD_BYTES])
            elif kind:
                yield kind, site, start, end, value
