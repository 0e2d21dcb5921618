"""How far the other threads of the script's process are at work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from trainprof.inside.process.own_thread import core_times

# Of the time: a thread that has less of a core sleeps, whatever line it stands at.
AT_WORK_FROM: Final = 0.02
# One that has so much of a core is asked for again, also where it stands at a line that waits.
BUSY_FROM: Final = 0.1
# In less time than that the interpreter may not have gone round.
_LEAST_NS: Final = 20_000_000
# Asking takes some 10 us of the interpreter for each, and ten times that the first time.
_MOST_ASKED: Final = 6
# A script may start many, one after the other.
_MOST_KNOWN: Final = 64


@dataclass(slots=True)
class _Known:
    """A thread: what tells its time on a core, what that was, when, and its share since."""

    told: Callable[[], tuple[int, int] | None]
    running_ns: int
    at_ns: int
    share: float | None = None


class BesideThreads:
    """Tells of threads, by their idents, for which share of the time they were on a core."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}
        self.busy: set[int] = set()

    def shares(self, threads: Iterable[int], now_ns: int) -> dict[int, float | None]:
        """Returns for each thread its share of a core since it was last asked for.

        The first ones are asked, as many as may be. None where it is not known: it is new, was not
        asked, or nobody can tell.
        """
        found: dict[int, float | None] = {}
        known, asked = self._known, 0
        for ident in threads:
            native = None if asked >= _MOST_ASKED else _native_id(ident)
            found[ident] = None
            if native is None:
                continue
            asked += 1
            one = known.get((ident, native))
            if one is not None and now_ns - one.at_ns < _LEAST_NS:
                found[ident] = one.share
                continue
            told = core_times(native) if one is None else one.told
            times = told()
            if times is None:
                known.pop((ident, native), None)
                continue
            if one is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known[ident, native] = _Known(told, times[0], now_ns)
                continue
            one.share = max(times[0] - one.running_ns, 0) / (now_ns - one.at_ns)
            one.running_ns, one.at_ns = times[0], now_ns
            found[ident] = one.share
        self.busy = {ident for ident, share in found.items() if (share or 0.0) >= BUSY_FROM}
        return found


def _native_id(ident: int) -> int | None:
    """Returns what the kernel calls a thread that `threading` knows; nothing of it is run."""
    threads: Any = getattr(sys.modules.get("threading"), "_active", None)
    thread = threads.get(ident) if isinstance(threads, dict) else None
    if thread is None:
        return None
    native = object.__getattribute__(thread, "__dict__").get("_native_id")
    return native if isinstance(native, int) else None
