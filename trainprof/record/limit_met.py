"""Where a process of a run with a time limit notes that it has met it, and then that it ends.

Nothing of it is measured from then on, and it may not end by itself: what it does behind its loop,
such as to stop its threads, it does not come to. Files of no content, by the process's number.
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


def tell_limit(directory: str) -> None:
    """Notes that this process has met its limit, and later that its code is over."""
    _make(directory, LIMIT_MET)
    # Python has no other call ahead of its waiting for threads, which may last for ever.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # it is ending already
            register(_make, directory, AT_END)


def processes_at_limit(directory: str) -> dict[int, str]:
    """Returns LIMIT_MET or AT_END by the pid of each process of a run that has noted it."""
    notes: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory), reverse=True):
            what, _, number = name.rpartition("-")
            # "at_end" comes behind "limit_met" here, and stands.
            if what in _NOTES and number.isdecimal():
                notes[int(number)] = what
    return notes


def has_begun_to_end(directory: str) -> bool:
    """Whether a process of a run has met its limit, or ranks have agreed on their last step."""
    is_agreed = os.path.exists(os.path.join(directory, LAST_STEP))
    return is_agreed or bool(processes_at_limit(directory))


def forget_limits(directory: str) -> None:
    """Removes what processes have noted of their limits, once the run is over."""
    for number, what in [(n, what) for n in processes_at_limit(directory) for what in _NOTES]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, f"{what}-{number}"))


def _make(directory: str, what: str) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(directory, f"{what}-{os.getpid()}"), _NEW_FILE, 0o600))
