"""Ends the processes that a trial's script started and left running.

While a trial runs this process is the child subreaper: orphans below it become its children.
Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from types import TracebackType
from typing import Final

import psutil

from trainprof.record.masking import masked_text
from trainprof.record.names import ENV_DIRECTORY

# prctl(2).
_PR_SET_CHILD_SUBREAPER: Final = 36
# Time in which helpers of multiprocessing or compilers end by themselves after the script.
OWN_END_S: Final = 2.0
# Between SIGTERM and SIGKILL.
GRACE_S: Final = 3.0
_KILLED_S: Final = 5.0
_POLL_S: Final = 0.05
# How the commands of Python's helpers and spawned children begin.
_OF_MULTIPROCESSING: Final = "from multiprocessing"
_INIT: Final = 1
# Checks without waiting, and leaves the process to be waited for.
_HAS_ENDED: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT if sys.platform == "linux" else 0
_NO_PROCESS: Final = -1


class Orphans:
    """Processes started below this one within `with Orphans(...) as orphans`.

    Processes from before the block, and what they start, are never touched. `directory` is the run
    directory in the environment of the run's processes; `helpers` are ours, and start none.
    """

    def __init__(self, directory: str, *, helpers: Collection[int] = ()) -> None:
        self._directory = directory
        self._helpers = helpers
        self._before: set[psutil.Process] = set()
        self._numbers: frozenset[int] = frozenset()
        self._others: list[psutil.Process] = []
        # Known to be the run's: an ending process has no environment any more.
        self._ours: set[psutil.Process] = set()
        self._is_adopting = False

    def __enter__(self) -> Orphans:
        with contextlib.suppress(psutil.Error, OSError):
            self._before = set(psutil.Process().children(recursive=True))
            self._numbers = frozenset(process.pid for process in self._before)
            self._others = [process for process in self._before if process.pid not in self._helpers]
            self._is_adopting = _adopt(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_adopting:
            _adopt(False)

    def reap(self, script: int) -> None:
        """Reaps ended orphans, as process 1 would, but not the script's process."""
        if not self._is_adopting:
            return
        others = self._numbers | {script}
        with contextlib.suppress(OSError):
            while (ended := os.waitid(os.P_ALL, 0, _HAS_ENDED)) is not None:
                if ended.si_pid in others:
                    break
                os.waitpid(ended.si_pid, os.WNOHANG)
            else:
                return
        # waitid() returned a process that others wait for, and would again: check each child.
        for child in _below(psutil.Process(), recursive=False):
            with contextlib.suppress(OSError):
                if child.pid not in others and os.waitid(os.P_PID, child.pid, _HAS_ENDED):
                    os.waitpid(child.pid, os.WNOHANG)

    def end(self) -> tuple[str, ...]:
        """Ends what is left after the script; returns the names of processes it had to end."""
        if not self._is_adopting:
            return ()
        staying = self._left_after(OWN_END_S)
        names = dict.fromkeys(name for process in staying for name in _named(process))
        _send(staying, signal.SIGTERM)
        _send(self._left_after(GRACE_S), signal.SIGKILL)
        self._left_after(_KILLED_S)
        return tuple(names)

    def _left_after(self, seconds: float) -> list[psutil.Process]:
        """Returns the processes left after that time; [] as soon as all have ended."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        return left

    def _left(self) -> list[psutil.Process]:
        foreign = self._before.union(*map(_below, self._others))
        below = (process for process in _below(psutil.Process()) if process not in foreign)
        left = [process for process in below if self._is_ours(process)]
        self._ours.update(left)
        # Last: processes that ended in between are not among `left`.
        self.reap(_NO_PROCESS)
        return left

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process in self._ours:
                return True
            # Orphans of others may reach us too, as process 1 of a container for one: then only
            # its environment shows that it is the trial's.
            if not self._others and os.getpid() != _INIT:
                return True
            return bool(process.environ().get(ENV_DIRECTORY) == self._directory)
        return False


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _below(process: psutil.Process, *, recursive: bool = True) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.children(recursive=recursive))
    return []


def _adopt(is_on: bool) -> bool:
    """Makes this process the child subreaper or ends that; returns whether it could."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        done = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return bool(done == 0)


def _named(process: psutil.Process) -> Iterator[str]:
    """Yields its program and Python script; other arguments may be secret."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if any(word.startswith(_OF_MULTIPROCESSING) for word in words):
            return  # a helper of another process
        name = process.name()
        script = next((word for word in words[1:2] if word.endswith(".py")), None)
        yield masked_text(name if script is None else f"{name} {os.path.basename(script)}")


class Descendants:
    """The processes below a process now; a pid reused later does not count."""

    def __init__(self, pid: int) -> None:
        self._processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            self._processes = psutil.Process(pid).children(recursive=True)

    def send(self, number: int) -> None:
        _send(self._processes, number)

    def have_ended(self) -> bool:
        return not any(map(_is_running, self._processes))


def is_running(pid: int) -> bool:
    """Returns whether the process exists and has not ended."""
    try:
        return _is_running(psutil.Process(pid))
    except psutil.Error:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
