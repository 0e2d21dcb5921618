"""A thread of ours in the script's process: how it starts, what it was kept waiting for."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is not imported ahead of the script
import gc
import os
import sys
from _thread import allocate_lock, get_native_id, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_PR_SET_TIMERSLACK: Final = 29
_FILE_BYTES: Final = 96
# How long whoever ends a thread waits for it; it needs some 50 us.
_PATIENCE_S: Final = 0.05
# Whether a thread of ours, of which one at a time looks, has switched the collector off.
_is_off = False


def start_thread(run: Callable[..., None], *arguments: Any) -> None:
    """Runs a function in a thread that `threading` does not know and that takes no signals."""
    # A signal that the script has blocked, to wait for it, would else be delivered to us.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        start_new_thread(run, arguments)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


class OwnThread:
    """A thread of ours that can be ended and begun again; it does not live while a process forks.

    Args:
        run: Called in it with a lock that can be acquired once it is to end.
    """

    def __init__(self, run: Callable[[Any], None]) -> None:
        self._run = run
        self._goes_on = False
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

    def end_to_fork(self) -> None:
        self._goes_on = self._stop is not None
        self.end()

    def go_on(self) -> None:
        if self._goes_on:
            self.begin()

    def forget(self) -> None:
        """In a forked child, which does not have it."""
        self._stop = None
        collect_again()

    def _run_until(self, stop: Any, has_ended: Any) -> None:
        try:
            self._run(stop)
        finally:
            has_ended.release()


def why_not_here() -> str | None:
    """Returns why no stacks are sampled in this process, None if they are."""
    if sys.implementation.name != "cpython":
        return f"not on {sys.implementation.name}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "not without the GIL"
    if not hasattr(_signal, "pthread_sigmask"):
        return f"not on {sys.platform}"
    return None


@contextmanager
def no_collections() -> Iterator[None]:
    """Keeps the garbage collector from running the script's finalizers on this thread.

    Only for what takes less than a switch interval and lets go of the GIL nowhere: the script would
    see it, and what it asks of the collector then would be undone.
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
    """Undoes `no_collections` in a forked child, which has no such thread to do it."""
    global _is_off
    if _is_off:
        gc.enable()
    _is_off = False


def times_waited() -> Callable[[], int]:
    """Returns what counts how often its caller's thread had to wait; ImportError without count."""
    from trainprof.inside.process.usage import RUSAGE_THREAD, getrusage

    if RUSAGE_THREAD is None:
        raise ImportError("RUSAGE_THREAD")
    return lambda: int(getrusage(RUSAGE_THREAD).ru_nvcsw)


def core_times(thread: int | None = None) -> Callable[[], tuple[int, int] | None]:
    """Returns what reads how long a thread, or this one, was on a core and waited for one, ns."""
    read = _reader(f"/proc/self/task/{thread or get_native_id()}/schedstat")

    def read_times() -> tuple[int, int] | None:
        fields = read().split()
        return (int(fields[0]), int(fields[1])) if len(fields) > 1 else None

    return read_times


def has_a_core(thread: int) -> Callable[[], bool]:
    """Returns what asks whether a thread runs at this moment, or would if it had a core."""
    read = _reader(f"/proc/self/task/{thread}/stat")
    # The state stands behind the name in brackets, which may have brackets of its own.
    return lambda: read().rpartition(b") ")[2].startswith(b"R")


def _reader(path: str) -> Callable[[], bytes]:
    """Returns what reads how a file begins, b"" where it cannot; it does not let go of the GIL."""
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
