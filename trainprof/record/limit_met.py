"""Empty files by which a process shows that it reached its limit, and later that it is ending.

The supervisor reads them: a process past its limit is not measured, and may hang, for it skips
the code after its loop that stops its threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from trainprof.record.names import LAST_STEP

LIMIT_MET: Final = "limit_met"
AT_END: Final = "at_end"
_NOTES: Final = (LIMIT_MET, AT_END)
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def record_limit_met(directory: str) -> None:
    """Records that this process reached its limit, and later that its code has ended."""
    _make(directory, LIMIT_MET)
    # Python's only hook before it joins threads, which may hang.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # Python is shutting down
            register(_make, directory, AT_END)


def processes_at_limit(directory: str) -> dict[int, str]:
    """Returns LIMIT_MET or AT_END by pid, for each process of a run that recorded it."""
    notes: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory), reverse=True):
            what, _, number = name.rpartition("-")
            # "at_end" is sorted after "limit_met" and overwrites it.
            if what in _NOTES and number.isdecimal():
                notes[int(number)] = what
    return notes


def has_begun_to_end(directory: str) -> bool:
    """Returns whether a process reached its limit, or the ranks agreed on their last step."""
    is_agreed = os.path.exists(os.path.join(directory, LAST_STEP))
    return is_agreed or bool(processes_at_limit(directory))


def forget_limits(directory: str) -> None:
    """Removes these files after the run."""
    for number, what in [(n, what) for n in processes_at_limit(directory) for what in _NOTES]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, f"{what}-{number}"))


def _make(directory: str, what: str) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(directory, f"{what}-{os.getpid()}"), _NEW_FILE, 0o600))
