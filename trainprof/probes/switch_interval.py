"""For how long Python code may keep the GIL from a thread of ours that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

_HALF_A_US: Final = 5e-7


class SwitchInterval:
    """The interpreter's switch interval, shortened; the script is told the one it knows.

    Args:
        short_s: To be shortened to; one that is shorter already stays.
    """

    def __init__(self, short_s: float) -> None:
        self._short_s = short_s
        self._get, self._set = sys.getswitchinterval, sys.setswitchinterval
        self._scripts_s: float | None = None
        self._ours: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    @property
    def now_ns(self) -> int:
        return round(self._get() * 1e9)

    def shorten(self) -> None:
        if self._ours is not None:
            return
        self._get, self._set = sys.getswitchinterval, sys.setswitchinterval
        self._scripts_s = self._get()

        def getswitchinterval() -> float:
            return self._get() if self._scripts_s is None else self._scripts_s

        def setswitchinterval(interval: float, /) -> None:
            self._set(interval)
            if self._scripts_s is not None:
                self._scripts_s = self._get()
                self._set_ours()

        for ours, theirs in ((getswitchinterval, self._get), (setswitchinterval, self._set)):
            ours.__doc__, ours.__module__ = theirs.__doc__, theirs.__module__
            ours.__qualname__ = theirs.__qualname__
        self._ours = getswitchinterval, setswitchinterval
        sys.getswitchinterval, sys.setswitchinterval = self._ours
        self._set_ours()

    def _set_ours(self) -> None:
        if self._get() > self._short_s:
            self._set(self._short_s)

    def restore(self) -> None:
        if self._ours is None or self._scripts_s is None:
            return
        self._set(self._scripts_s + _HALF_A_US)  # it is cut down to whole us
        self._scripts_s = None
        # Those that somebody has wrapped since stay, and pass through.
        if (sys.getswitchinterval, sys.setswitchinterval) == self._ours:
            sys.getswitchinterval, sys.setswitchinterval = self._get, self._set
            self._ours = None
