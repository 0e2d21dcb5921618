"""What a trial's script has started and left behind: found, and ended with the trial.

A process whose parent has gone belongs to the first of its ancestors that takes care of such: while
a trial runs, that is this process. Linux only.
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

# As of prctl(2).
_PR_SET_CHILD_SUBREAPER: Final = 36
# Helpers of multiprocessing, compilers' workers and the like end by themselves once they see that
# the script is gone.
OWN_END_S: Final = 2.0
# Between asking one to end and killing it.
GRACE_S: Final = 3.0
_KILLED_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.05
# As a command of Python's begins its helpers and spawned children.
_OF_MULTIPROCESSING: Final = "from multiprocessing"
_INIT: Final = 1
# Looks without waiting, and leaves it to whoever waits for it.
_HAS_ENDED: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT if sys.platform == "linux" else 0
_NO_PROCESS: Final = -1


class Orphans:
    """Processes that came into being below this one: `with Orphans(...) as orphans`.

    Those that are there before the block are never touched, nor is what they start. `directory` is
    what the run's processes have in their environment; `helpers` are ours, and start none.
    """

    def __init__(self, directory: str, *, helpers: Collection[int] = ()) -> None:
        self._directory = directory
        self._helpers = helpers
        self._before: set[psutil.Process] = set()
        self._numbers: frozenset[int] = frozenset()
        self._others: list[psutil.Process] = []
        # Those that were found to be: one that is about to be gone has no environment any more.
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
        """Lets go of those that have ended, as process 1 would, but for the script's process."""
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
        # One that another waits for is told each time, as long as that has not come to it.
        for child in _below(psutil.Process(), recursive=False):
            with contextlib.suppress(OSError):
                if child.pid not in others and os.waitid(os.P_PID, child.pid, _HAS_ENDED):
                    os.waitpid(child.pid, os.WNOHANG)

    def end(self) -> tuple[str, ...]:
        """Ends what is left, once the script itself has; returns names of what had to be ended."""
        if not self._is_adopting:
            return ()
        staying = self._left_after(OWN_END_S)
        names = dict.fromkeys(name for process in staying for name in _named(process))
        _send(staying, signal.SIGTERM)
        _send(self._left_after(GRACE_S), signal.SIGKILL)
        self._left_after(_KILLED_S)
        return tuple(names)

    def _left_after(self, seconds: float) -> list[psutil.Process]:
        """Returns what is left then; [] as soon as nothing is."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        return left

    def _left(self) -> list[psutil.Process]:
        strange = self._before.union(*map(_below, self._others))
        below = (process for process in _below(psutil.Process()) if process not in strange)
        left = [process for process in below if self._is_ours(process)]
        self._ours.update(left)
        # Behind that: what ended meanwhile is not among them.
        self.reap(_NO_PROCESS)
        return left

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process in self._ours:
                return True
            # Where others may have left it to us, it has to say itself that it is the trial's. In a
            # container this may be the process to which all are left.
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
    """Has orphans below this process become its own, or no more; returns whether that is so."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        done = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return bool(done == 0)


def _named(process: psutil.Process) -> Iterator[str]:
    """Yields what people know it by: its program, of Python the script; arguments may be secret."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if any(word.startswith(_OF_MULTIPROCESSING) for word in words):
            return  # it serves another
        name = process.name()
        script = next((word for word in words[1:2] if word.endswith(".py")), None)
        yield masked_text(name if script is None else f"{name} {os.path.basename(script)}")


class Descendants:
    """The processes below a process, as they are now; a pid that is reused later is not one."""

    def __init__(self, pid: int) -> None:
        self._processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            self._processes = psutil.Process(pid).children(recursive=True)

    def send(self, number: int) -> None:
        _send(self._processes, number)

    def have_ended(self) -> bool:
        return not any(map(_is_running, self._processes))


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return _is_running(psutil.Process(pid))
    except psutil.Error:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
