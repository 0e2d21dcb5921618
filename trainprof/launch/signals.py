"""Which signals the supervisor takes, and how: blocked, and waited for one by one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn

# What somebody may send to stop the script or to tell it something. Job control (SIGTSTP, SIGCONT)
# is left alone: it reaches the foreground group as a whole, as without us.
FORWARDED: Final = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
WATCHED: Final = FORWARDED | {signal.SIGCHLD}
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

SI_KERNEL: Final = 0x80


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that was waited for; `typed`: at the terminal, so the foreground group has it."""

    number: int
    typed: bool


def block() -> set[int]:
    """Blocks the watched signals in this thread and those it starts; returns the mask before."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)}


def wait() -> Received:
    """Waits for the next watched signal."""
    if sys.platform == "darwin":  # no sigwaitinfo: who sent it is not told
        return Received(int(signal.sigwait(WATCHED)), typed=False)
    info = signal.sigwaitinfo(WATCHED)
    from_kernel = info.si_code == SI_KERNEL
    typed = from_kernel and info.si_signo in (signal.SIGINT, signal.SIGQUIT)
    return Received(info.si_signo, typed)


def take_pending(numbers: Iterable[int] = WATCHED) -> list[int]:
    """Consumes those of `numbers` that have arrived and are blocked; returns them, sorted."""
    wanted = set(numbers)
    pending = sorted(int(number) for number in signal.sigpending() if number in wanted)
    if sys.platform == "darwin":  # no sigtimedwait
        return [int(signal.sigwait({number})) for number in pending]
    # Without waiting: a thread that does not block it may have taken one since.
    return [number for number in pending if signal.sigtimedwait({number}, 0) is not None]


def end_at_next(end: Callable[[], NoReturn]) -> None:
    """Makes a signal that asks us to end call `end` from now on; the others have nobody left."""

    def at_signal(number: int, frame: FrameType | None) -> NoReturn:
        end()

    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, at_signal if number in ENDING else signal.SIG_IGN)
