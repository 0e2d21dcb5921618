"""The signals that the supervisor handles: it blocks them and waits for them one by one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, NoReturn

ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
# Sent to stop the script or to trigger a handler of it. Job control (SIGTSTP, SIGCONT) is not
# handled: it reaches the whole foreground group, as without us.
FORWARDED: Final = ENDING | {signal.SIGUSR1, signal.SIGUSR2}
WATCHED: Final = FORWARDED | {signal.SIGCHLD}

SI_KERNEL: Final = 0x80


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that arrived; `typed`: at the terminal, so the whole foreground group got it."""

    number: int
    typed: bool


def block() -> set[int]:
    """Blocks the watched signals in this thread and those it starts; returns the mask before."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)}


def wait() -> Received:
    """Waits for the next watched signal."""
    info = signal.sigwaitinfo(WATCHED)
    from_kernel = info.si_code == SI_KERNEL
    typed = from_kernel and info.si_signo in (signal.SIGINT, signal.SIGQUIT)
    return Received(info.si_signo, typed)


def take_pending(numbers: Iterable[int] = WATCHED) -> list[int]:
    """Consumes those of `numbers` that have arrived and are blocked; returns them, sorted."""
    wanted = set(numbers)
    pending = sorted(int(number) for number in signal.sigpending() if number in wanted)
    # Without waiting: a thread that does not block it may have taken one since.
    return [number for number in pending if signal.sigtimedwait({number}, 0) is not None]


def end_at_next(end: Callable[[], NoReturn]) -> None:
    """Calls `end` at the next signal that asks us to end; ignores signals meant for the script."""

    def at_signal(number: int, frame: FrameType | None) -> NoReturn:
        end()

    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, at_signal if number in ENDING else signal.SIG_IGN)


# systemd, SLURM and pkill signal one process after another.
SETTLE_S: Final = 0.02
ANSWER_TIMEOUT_S: Final = 1.0
MASK_BYTES: Final = 8
QUERY: Final = b"?"


@dataclass(slots=True)
class GroupWitness:
    """The supervisor's handle of the witness, a process that sees signals to the group."""

    pid: int
    _queries: int
    _answers: int
    _kept: set[int] = field(default_factory=set)

    @classmethod
    def start(cls, script_argv: Sequence[str]) -> GroupWitness:
        """Forks the witness, named after `script_argv`; signals are blocked, and no thread runs."""
        query_reader, query_writer = os.pipe()
        try:
            answer_reader, answer_writer = os.pipe()
        except OSError:  # of the few descriptors that are left
            os.close(query_reader)
            os.close(query_writer)
            raise
        pid = os.fork()
        if pid == 0:
            _be_witness(query_reader, answer_writer, script_argv)
        os.close(query_reader)
        os.close(answer_writer)
        return cls(pid, query_writer, answer_reader)

    def saw(self, number: int) -> bool:
        """Returns whether the signal, just received, reached the group."""
        time.sleep(SETTLE_S)
        seen = self._kept | self.take_seen()
        # Signals that are pending here are asked about next.
        self._kept = {other for other in seen if other in signal.sigpending()} - {number}
        return number in seen

    def take_seen(self) -> set[int]:
        """Returns the signals that reached the group since last asked; none if it is gone."""
        if self._queries < 0:
            return set()
        try:
            os.write(self._queries, QUERY)
            if select.select([self._answers], [], [], ANSWER_TIMEOUT_S)[0]:
                answer = os.read(self._answers, MASK_BYTES)
                if len(answer) == MASK_BYTES:
                    return _numbers(int.from_bytes(answer, "little"))
        except OSError:
            pass
        self.end()  # a late answer would be read as that of the next query
        return set()

    def end(self) -> None:
        """Ends the witness and reaps it; a second call does nothing."""
        if self._queries < 0:
            return
        os.close(self._queries)
        os.close(self._answers)
        self._queries = self._answers = -1
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # also ends one that is stopped
            os.waitpid(self.pid, 0)


def _be_witness(queries: int, answers: int, script_argv: Sequence[str]) -> NoReturn:
    """Answers queries until the supervisor ends, however: its end of the pipe closes then."""
    try:
        _keep_only(queries, answers)
        with contextlib.suppress(Exception):
            _take_name(script_argv)
        while os.read(0, 1):
            seen = take_pending(FORWARDED)
            os.write(1, sum(1 << number for number in seen).to_bytes(MASK_BYTES, "little"))
    finally:
        os._exit(0)


def _keep_only(queries: int, answers: int) -> None:
    """Moves the pipes to descriptors 0 and 1 and closes the others, the user's pipes too."""
    null = os.open(os.devnull, os.O_RDWR)
    # First out of the way: where the user closed 0 or 1, a pipe may have taken its number.
    queries, answers, null = (fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for fd in (queries, answers, null))
    os.dup2(queries, 0)
    os.dup2(answers, 1)
    os.dup2(null, 2)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _take_name(script_argv: Sequence[str]) -> None:
    """Names the witness after the script, so that `pkill NAME` finds both or neither.

    Otherwise `pkill -f trainprof` would reach the supervisor and the witness but not the script: it
    would appear to be a signal to the group. Linux only; elsewhere it raises.
    """
    with open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(os.fsencode(os.path.basename(script_argv[0]))[:15])
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: proc(5) fields 48 and 49
    words = [b"witness", *map(os.fsencode, script_argv[1:])]
    text = b"\0".join(words)[: end - start - 1]
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text.ljust(end - start, b"\0"))


def _numbers(mask: int) -> set[int]:
    return {number for number in range(mask.bit_length()) if mask >> number & 1}
