"""How the script ended, and how to end the same way."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from typing import Final, NoReturn

# The exit status of a shell, or of a script that waits for another process, after Ctrl-C.
INTERRUPTED_STATUS: Final = 128 + signal.SIGINT

# On Linux 1 means "no dump" even where a program receives dumps; 0 would be ignored there.
NO_CORE_DUMP_BYTES: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The script's process from exec to end, as its parent saw it.

    Attributes:
        status, signal: How it ended: one of them, the other one None.
        ended_ns: `time.perf_counter_ns` when its end was seen.
        max_rss_bytes: Of the largest of it and the children it waited for.
        user_s, system_s: With the children it waited for.
        interrupted: Ctrl-C (SIGINT) was seen, or ended the script.
    """

    status: int | None
    signal: int | None
    ended_ns: int
    max_rss_bytes: int
    user_s: float
    system_s: float
    interrupted: bool
    signals_received: tuple[int, ...]


def outcome_of(
    wait_status: int,
    usage: resource.struct_rusage,
    *,
    ended_ns: int,
    signals_received: tuple[int, ...],
    interrupted: bool,
) -> Outcome:
    """Returns the outcome of `os.wait4`, with the signals that the supervisor saw."""
    code = os.waitstatus_to_exitcode(wait_status)
    status, number = (code, None) if code >= 0 else (None, -code)
    return Outcome(
        status=status,
        signal=number,
        ended_ns=ended_ns,
        max_rss_bytes=usage.ru_maxrss * 1024,
        user_s=usage.ru_utime,
        system_s=usage.ru_stime,
        interrupted=(interrupted or number == signal.SIGINT or status == INTERRUPTED_STATUS),
        signals_received=signals_received,
    )


def mirror_exit(outcome: Outcome) -> NoReturn:
    """Ends this process as the script ended: same status, or same signal (without a core dump)."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if outcome.signal is not None:
        _die_by(outcome.signal)
    os._exit(128 + outcome.signal if outcome.signal is not None else outcome.status or 0)


def _die_by(number: int) -> None:
    """Sends ourselves the signal; returns only where that is ignored (a container's process 1)."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        limit = NO_CORE_DUMP_BYTES if hard == resource.RLIM_INFINITY else min(1, hard)
        resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no disposition
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
