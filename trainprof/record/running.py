"""Whether a run, or a process of it, still runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainprof.record.files import open_run_file
from trainprof.record.notes import MAX_PID, integer
from trainprof.record.run_directory import RunDirectory

RUNNING: Final = "running"
_NS: Final = 1_000_000_000
# From a process's start to a record of it: a busy machine, the kernel's ticks.
SLACK_NS: Final = 10 * _NS
# PF_EXITING among the flags of /proc/<pid>/stat: include/linux/sched.h.
_EXITING: Final = 0x4
# Without a process or a lock to check, a run is over once it has written nothing for this.
_SILENT_S: Final = 600


def is_running(directory: RunDirectory, manifest: Mapping[str, Any]) -> bool:
    """Whether a run is not over: its script exists, or its search holds the lock.

    On another machine the time of its last samples decides.
    """
    end, host = manifest.get("exit"), manifest.get("host")
    if not isinstance(end, dict) or end.get("reason") != RUNNING:
        return False
    is_here = isinstance(host, dict) and host.get("name") == os.uname().nodename
    if manifest.get("kind") == "tune":
        is_locked = _is_locked(directory.tune_lock)
        if is_locked or (is_here and is_locked is not None):
            return bool(is_locked)
    elif is_here and manifest.get("script_pid") is not None:
        return is_alive(manifest["script_pid"], manifest, known_ns=spawned_ns(manifest))
    path = directory.path
    try:
        written = [file.stat().st_mtime for file in (path, *path.glob("**/samples/host.jsonl"))]
    except OSError:
        return True
    return time.time() - max(written) < _SILENT_S


def _is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock; None without the file, or without locks."""
    import fcntl  # not on Windows

    try:
        descriptor = open_run_file(path)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def spawned_ns(manifest: Mapping[str, Any]) -> int | None:
    """Returns `time.perf_counter_ns` as the script was started, None if it is not recorded."""
    times = manifest.get("times")
    return integer(times.get("spawned_ns")) if isinstance(times, dict) else None


def is_alive(pid: object, manifest: Mapping[str, Any], *, known_ns: int | None) -> bool:
    """Whether the process exists; another one that has its pid now does not count.

    Args:
        known_ns: `time.perf_counter_ns` at which it existed, or None.
    """
    number, host = integer(pid), manifest.get("host")
    if number is None or not 0 < number <= MAX_PID or not isinstance(host, dict):
        return False
    if host.get("name") != os.uname().nodename or not _exists(number):
        return False
    begun_ns, started_ns = spawned_ns(manifest), _started_ns(number)
    if begun_ns is None or known_ns is None or started_ns is None:
        return True
    # The kernel's clock runs while the machine sleeps, ours does not.
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()
    return begun_ns - SLACK_NS <= started_ns <= known_ns + asleep_ns + SLACK_NS


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return not _has_ended(_stat(pid))


def _has_ended(fields: list[bytes]) -> bool:
    """Whether /proc's fields are of a process that is ending, or a zombie.

    A killed process first frees its memory and files; until then it may be in any state.
    """
    if fields[:1] in ([b"Z"], [b"X"]):
        return True
    try:
        return bool(int(fields[6]) & _EXITING)
    except (ValueError, IndexError):
        return False


def _started_ns(pid: int) -> int | None:
    """Returns the process's start, ns since the machine's start, or None."""
    fields = _stat(pid)
    try:
        return int(fields[19]) * _NS // os.sysconf("SC_CLK_TCK") or None
    except (ValueError, IndexError):
        return None


def _stat(pid: int) -> list[bytes]:
    """Returns the fields of /proc/<pid>/stat after the name, [] without such a file."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
