"""Records files that a trial without a sandbox writes, removes or renames, by an audit hook.

Native code and child processes other than Python are not seen. An audit hook cannot be removed, so
only the first trial has one, whose steps are not compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import Any, Final

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events that change files, and the positions of their path arguments.
_FIRST: Final = ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")
_CHANGES: Final = {
    **dict.fromkeys((*_FIRST, "sqlite3.connect"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}
_MOST: Final = 200
_OF_KERNEL: Final = ("/dev/", "/proc/", "/sys/")


class WrittenFiles:
    """Passes each path once to `record`, at most 200, with whether it existed before.

    Ignores `places`: the trial's scratch directory and the run directory.
    """

    def __init__(self, record: Callable[[str, bool], None], places: Collection[str]) -> None:
        self._record = record
        self._places = tuple(os.path.join(os.path.realpath(place), "") for place in places)
        self._seen: set[str] = set()
        self._is_recording = False

    def watch(self) -> None:
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_recording or not (event == "open" or event in _CHANGES):
            return
        try:
            self._is_recording = True
            if event == "open":
                path, _, flags = arguments
                if isinstance(flags, int) and flags & _WRITES:
                    self._take(path)
            else:
                for k in _CHANGES[event]:
                    self._take(arguments[k])
        except Exception:
            return  # our failure must not reach the script
        finally:
            self._is_recording = False

    def _take(self, path: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or len(self._seen) >= _MOST:
            return
        if path == ":memory:":  # of SQLite
            return
        real = os.path.realpath(os.fsdecode(path))
        if real not in self._seen and not real.startswith((*_OF_KERNEL, *self._places)):
            self._seen.add(real)
            self._record(real, os.path.lexists(real))
