"""Tells C code from Python code within a timed line, by looking at the thread from another one.

A thread of ours wakes at moments that have nothing to do with the script, and asks for the GIL:

- it has it at once: the script's thread had let go of it, which only C code does (torch, numpy,
  I/O, sleep);
- it has it as soon as the interpreter's switch interval is over: Python code was running, which
  lets go when asked to;
- it has it later, and the script's thread stands behind a call: C code kept the GIL until then.

Of how long it waited, what its own core kept it waiting is not the script's doing. C code that
keeps the GIL for less than `KEPT_NS` at a time counts as Python: nothing tells it.
"""

from __future__ import annotations

import opcode
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Container
from random import Random
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final

from trainprof.probes.line_timer import Label, label
from trainprof.probes.own_thread import (
    collect_again,
    no_collections,
    run_delay,
    start_thread,
    times_waited,
)
from trainprof.probes.switch_interval import SwitchInterval

# A look at Python code stops it for about 70 us: 0.3 % of the time.
PERIOD_NS: Final = 25_000_000
# With the interpreter's 5 ms the script's thread has often let go by itself before it is asked to.
SWITCH_INTERVAL_S: Final = 0.0005
KEPT_NS: Final = 150_000
# So many looks tell whether other threads run Python code too, and what part of them may show it.
_LOOKS_AT_OTHERS: Final = 40
_MAX_OTHERS_SHARE: Final = 0.25
_CALLS: Final = frozenset(
    code for name, code in opcode.opmap.items() if name.startswith(("CALL", "PRECALL"))
)

OTHER_THREADS: Final = "other threads run Python code too"


def why_not_here() -> str | None:
    """Returns why this interpreter does not let C code be told from Python, None if it does."""
    if sys.implementation.name != "cpython":
        return f"not on {sys.implementation.name}"
    if sys.platform != "linux":
        return f"not on {sys.platform}"
    if not (3, 10) <= sys.version_info[:2] <= (3, 11):
        return f"not on Python {sys.version_info[0]}.{sys.version_info[1]}"
    return None


class CodeWatch:
    """Looks at the thread whose lines are timed.

    Attributes:
        looks: Looks in all and those that met C code, by function and line; of all functions that
            were being run, since a line's time includes that of what it calls.
        stood_down: Why it ended by itself, if it did.
    """

    def __init__(self, is_timed: Container[Label]) -> None:
        """
        Args:
            is_timed: The functions whose lines are timed.
        """
        self._is_timed = is_timed
        self._interval = SwitchInterval(SWITCH_INTERVAL_S)
        self._stop: Any = None
        # Of frames that a fork inherits: what runs in them is the parent's.
        self._inherited: set[int] = set()
        self.looks: dict[tuple[Label, int], tuple[int, int]] = {}
        self.stood_down: str | None = None

    def start(self) -> None:
        """Begins to look at the thread that calls this; does nothing if it has begun or ended."""
        if self._stop is not None or self.stood_down is not None:
            return
        stop = allocate_lock()
        stop.acquire()
        start_thread(self._run, stop, get_ident())
        self._stop = stop
        self._interval.shorten()

    def stop(self) -> None:
        """Ends; `start` begins again."""
        if self._stop is not None:
            self._stop.release()
            self._stop = None
            self._interval.restore()

    def after_fork(self) -> None:
        """Starts from zero in a forked process, where the thread is no more."""
        self._stop = None
        self._interval.restore()
        collect_again()
        self.looks = {}
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            self._inherited.add(id(frame))
            frame = frame.f_back

    def _run(self, stop: Any, watched: int) -> None:
        try:
            self._look_until(stop, watched)
        except Exception as error:
            self.stood_down = f"{type(error).__name__}: {error}"

    def _look_until(self, stop: Any, watched: int) -> None:
        now, wait, moment = perf_counter_ns, stop.acquire, Random().uniform
        late_by_itself, switches = run_delay(), times_waited()
        others = _Others(watched, get_ident())
        due, delayed = now(), late_by_itself()
        while True:
            due += round(PERIOD_NS * moment(0.5, 1.5))
            left = due - now()
            switched = switches()
            if wait(True, max(left, 0) * 1e-9):
                return
            got = now()
            # One for the wait itself; whoever finds the GIL taken has to wait once more.
            switched = switches() - switched
            was_free = switched <= 1
            if left <= 0:
                due = got
                continue
            before, delayed = delayed, late_by_itself()
            waited = got - due - (delayed - before)
            interval_ns = self._interval.now_ns
            # Moments that passed while C code kept the GIL: each would have met it.
            missed = max(got - due - interval_ns, 0) // PERIOD_NS
            due += missed * PERIOD_NS
            with no_collections():
                frames = sys._current_frames()
                frame = frames.get(watched)
                if frame is not None and _is_where_it_was(switched, waited, interval_ns):
                    is_in_c = was_free or _kept_gil(frame, waited, interval_ns)
                    self._count(frame, is_in_c, 1 + missed)
                others.look(frames)
                del frames, frame
            if others.are_busy():
                self.stood_down = OTHER_THREADS
                return

    def _count(self, leaf: FrameType, is_in_c: bool, looks: int) -> None:
        frame: FrameType | None = leaf
        seen = set()
        while frame is not None and id(frame) not in self._inherited:
            function = label(frame.f_code)
            if function in self._is_timed:
                seen.add((function, frame.f_lineno))
            frame = frame.f_back
        for place in seen:
            before, in_c = self.looks.get(place, (0, 0))
            self.looks[place] = (before + looks, in_c + looks * is_in_c)


def _is_where_it_was(switches: int, waited_ns: int, interval_ns: int) -> bool:
    """Tells whether the thread can still stand in the line that it ran when the GIL was wanted.

    Where it lets go often and shortly, it has the GIL again each time before we are awake.
    """
    return switches <= 3 + max(waited_ns, 0) // interval_ns


def _kept_gil(leaf: FrameType, waited_ns: int, interval_ns: int) -> bool:
    return waited_ns > interval_ns + KEPT_NS and _is_at_call(leaf)


def _is_at_call(leaf: FrameType) -> bool:
    return leaf.f_lasti >= 0 and leaf.f_code.co_code[leaf.f_lasti] in _CALLS


class _Others:
    """The process's other threads: where one of them runs Python code, the GIL tells nothing."""

    def __init__(self, *but: int) -> None:
        self._but = but
        self._places: dict[int, tuple[int, int]] = {}
        self._looks = self._moved = 0

    def look(self, frames: dict[int, FrameType]) -> None:
        places = {
            thread: (id(frame.f_code), frame.f_lasti)
            for thread, frame in frames.items()
            if thread not in self._but
        }
        # One that waits for work stands at a call, and comes back to where it waited.
        self._looks += 1
        self._moved += any(
            self._places.get(thread, place) != place or not _is_at_call(frames[thread])
            for thread, place in places.items()
        )
        self._places = places

    def are_busy(self) -> bool:
        if self._looks < _LOOKS_AT_OTHERS:
            return False
        are_busy = self._moved > _MAX_OTHERS_SHARE * self._looks
        self._looks = self._moved = 0
        return are_busy
