"""Exceptions that a signal handler of the script's raises while code of ours runs: the script's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Final

# An exception's own class may watch that its attributes are read.
traceback_of: Final[Callable[[BaseException], TracebackType | None]] = vars(BaseException)[
    "__traceback__"
].__get__


def comes_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised it: they run wherever Python code does."""
    import signal
    from inspect import getattr_static

    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        code = getattr(handler, "__code__", None)
        codes.add(
            code or getattr(getattr_static(type(handler), "__call__", None), "__code__", None)
        )
    traceback = traceback_of(error)
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
