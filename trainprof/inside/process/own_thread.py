"""A thread of ours in the script's process, and readings of threads' CPU and wait times."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: the script imports it first
import gc
import os
import sys
from _thread import allocate_lock, get_native_id, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_PR_SET_TIMERSLACK: Final = 29
_FILE_BYTES: Final = 96
# Longest wait for a thread to end, which takes about 50 us.
_PATIENCE_S: Final = 0.05
# Whether a thread of ours (one at a time samples) has switched the collector off.
_is_off = False


def start_thread(run: Callable[..., None], *arguments: Any) -> None:
    """Runs a function in a thread that is unknown to `threading` and blocks all signals."""
    # Else it would get signals that the script's threads block in order to wait for them.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        start_new_thread(run, arguments)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


class OwnThread:
    """A thread of ours that can be ended and restarted; it is ended before a fork.

    Args:
        run: Called in the thread with a lock that can be acquired once the thread has to end.
    """

    def __init__(self, run: Callable[[Any], None]) -> None:
        self._run = run
        self._restarts = False
        self._stop: Any = None
        self._has_ended: Any = None

    def begin(self) -> None:
        if self._stop is not None:
            return
        stop, has_ended = allocate_lock(), allocate_lock()
        stop.acquire()
        has_ended.acquire()
        start_thread(self._run_until, stop, has_ended)
        self._stop, self._has_ended = stop, has_ended

    def end(self) -> None:
        if self._stop is None:
            return
        stop, has_ended = self._stop, self._has_ended
        self._stop = None
        stop.release()
        has_ended.acquire(True, _PATIENCE_S)

    def end_before_fork(self) -> None:
        self._restarts = self._stop is not None
        self.end()

    def restart_after_fork(self) -> None:
        if self._restarts:
            self.begin()

    def forget(self) -> None:
        """Resets a forked child, which does not have the thread."""
        self._stop = None
        collect_again()

    def _run_until(self, stop: Any, has_ended: Any) -> None:
        try:
            self._run(stop)
        finally:
            has_ended.release()


def why_unsupported() -> str | None:
    """Returns why stacks can't be sampled in this process, None if they can."""
    if sys.implementation.name != "cpython":
        return f"stack sampling does not support {sys.implementation.name}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "stack sampling needs the GIL"
    if not hasattr(_signal, "pthread_sigmask"):
        return f"stack sampling does not support {sys.platform}"
    return None


@contextmanager
def no_collections() -> Iterator[None]:
    """Keeps the garbage collector from running the script's finalizers on this thread.

    Only for code that takes less than a switch interval and never releases the GIL: else the
    script would see the collector off, and changes that it makes would be undone.
    """
    global _is_off
    _is_off = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _is_off:
            gc.enable()
        _is_off = False


def collect_again() -> None:
    """Undoes `no_collections` in a child forked within it."""
    global _is_off
    if _is_off:
        gc.enable()
    _is_off = False


def voluntary_switches() -> Callable[[], int]:
    """Returns a function for its thread's voluntary context switches; ImportError without."""
    from trainprof.inside.process.usage import RUSAGE_THREAD, getrusage

    if RUSAGE_THREAD is None:
        raise ImportError("RUSAGE_THREAD")
    return lambda: int(getrusage(RUSAGE_THREAD).ru_nvcsw)


def core_times(thread: int | None = None) -> Callable[[], tuple[int, int] | None]:
    """Returns a function for a thread's (CPU time, run delay) in ns; default: this thread."""
    read = _reader(f"/proc/self/task/{thread or get_native_id()}/schedstat")

    def read_times() -> tuple[int, int] | None:
        fields = read().split()
        return (int(fields[0]), int(fields[1])) if len(fields) > 1 else None

    return read_times


def is_runnable(thread: int) -> Callable[[], bool]:
    """Returns a function that tests whether a thread is running or waiting for a core."""
    read = _reader(f"/proc/self/task/{thread}/stat")
    # The state follows the name in parentheses, which may contain parentheses.
    return lambda: read().rpartition(b") ")[2].startswith(b"R")


def _reader(path: str) -> Callable[[], bytes]:
    """Returns a function for a file's first bytes, b"" on failure, which keeps the GIL."""
    name = path.encode()
    try:
        import ctypes

        libc = ctypes.PyDLL(None)
        buffer = ctypes.create_string_buffer(_FILE_BYTES)
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        open_, read, close = libc.open, libc.read, libc.close
    except (ImportError, OSError, AttributeError):
        return lambda: b""

    def read_file() -> bytes:
        descriptor = open_(name, os.O_RDONLY | os.O_CLOEXEC)
        if descriptor < 0:
            return b""
        length = read(descriptor, buffer, _FILE_BYTES)
        close(descriptor)
        return buffer.raw[: max(length, 0)]

    return read_file
