"""Whether a process of a run still exists on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.timeline.events import MAX_PID

NS_PER_S: Final = 1_000_000_000
# From a process's start to the moment that tells of it: a busy machine, the kernel's ticks.
SLACK_NS: Final = 10 * NS_PER_S
# PF_EXITING among the flags of /proc/<pid>/stat: include/linux/sched.h.
_EXITING: Final = 0x4


def is_alive(pid: object, manifest: Mapping[str, Any], *, known_ns: int | None) -> bool:
    """Tells whether the process is there; another one that was given its pid since is not it.

    Args:
        pid: Of the process; what is no pid is no process.
        manifest: Of its run, for the machine and the start.
        known_ns: `time.perf_counter_ns` of a moment at which it existed, or None.
    """
    number, host = integer(pid), manifest.get("host")
    if number is None or not 0 < number <= MAX_PID or not isinstance(host, dict):
        return False
    if host.get("name") != os.uname().nodename or not _exists(number):
        return False
    times, started_ns = manifest.get("times"), _started_ns(number)
    spawned_ns = integer(times.get("spawned_ns")) if isinstance(times, dict) else None
    if spawned_ns is None or known_ns is None or started_ns is None:
        return True
    # The kernel's clock runs while the machine sleeps, ours does not.
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()
    return spawned_ns - SLACK_NS <= started_ns <= known_ns + asleep_ns + SLACK_NS


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return not _has_ended(_stat(pid))


def _has_ended(fields: list[bytes]) -> bool:
    """Tells whether /proc's fields are of a process that ends, or that nobody has waited for yet.

    One that is killed gives back its memory and files first; until then it is in any state.
    """
    if fields[:1] in ([b"Z"], [b"X"]):
        return True
    try:
        return bool(int(fields[6]) & _EXITING)
    except (ValueError, IndexError):
        return False


def _started_ns(pid: int) -> int | None:
    """Returns the process's start, ns since the machine's start; None where that is not told."""
    fields = _stat(pid)
    try:
        return int(fields[19]) * NS_PER_S // os.sysconf("SC_CLK_TCK") or None
    except (ValueError, IndexError):
        return None


def _stat(pid: int) -> list[bytes]:
    """Returns what /proc/<pid>/stat tells behind the name, [] where there is no such file."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
