"""Follows a script's event log while it grows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainprof.record.last_stacks import main_place, read_last_stacks
from trainprof.record.log_reader import UnreadableLog, join_texts, log_paths, read_log
from trainprof.record.schema import HEADER_BYTES, RECORD, RECORD_BYTES, Kind, Topic

_MAX_READ_BYTES: Final = 1 << 24

# kind, site, start ns, end ns, value
LiveRecord = tuple[int, int, int, int, int]


# A process that has written one of these trains, or asks for batches.
_TRAINING: Final = frozenset(
    (Kind.LOADER_NEXT, Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
)


class LiveLog:
    """Yields what the process that trains has written since the last call.

    Attributes:
        pid: Of the process whose logs are followed: the script's, or the first other that trains
            while the script does not, as with torchrun. One that re-executes itself has several.
    """

    def __init__(self, events: Path, pid: int) -> None:
        self._events = events
        self.pid = pid
        self._is_training = False
        self._offsets: dict[Path, int] = {}
        self._texts: list[bytes] = []

    def read(self) -> Iterator[LiveRecord]:
        """Yields the new records in the order in which they were written."""
        paths = log_paths(self._events)
        if not self._is_training:
            self._find_training(paths)
        for path in paths:
            if _pid_of(path) == self.pid:
                yield from self._read_file(path)

    def _find_training(self, paths: list[Path]) -> None:
        for path in sorted(paths, key=lambda path: (_pid_of(path) != self.pid, _pid_of(path))):
            with contextlib.suppress(UnreadableLog):
                if _TRAINING & read_log(path).kinds():
                    self.pid, self._is_training = _pid_of(path), True
                    return

    def text(self, number: int, topic: Topic) -> Any:
        """Returns a text's JSON value, None while it is not known."""
        found = join_texts(self._texts).get(number)
        if found is None or found[0] is not topic:
            return None
        try:
            return json.loads(found[1])
        except (ValueError, RecursionError):
            return None

    def main_place(self, cwd: str | None) -> str | None:
        """Returns where its main thread stood last, as `train.py:41`; None where unknown."""
        places = (
            main_place(sample, cwd)
            for sample in read_last_stacks(self._events)
            if sample.get("pid") == self.pid
        )
        return next(places, None)

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


def _pid_of(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0
