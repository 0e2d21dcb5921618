"""Detects exceptions that a signal handler of the script raised while our code ran."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Final

# By the base class: an exception's class may override attribute access.
traceback_of: Final[Callable[[BaseException], TracebackType | None]] = vars(BaseException)[
    "__traceback__"
].__get__


def comes_from_signal_handler(error: BaseException) -> bool:
    """Returns whether a signal handler raised it: handlers run wherever Python code does."""
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
