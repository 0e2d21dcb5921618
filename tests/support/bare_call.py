"""Calls that no Python code makes, as those of functions registered with `atexit`."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any, Final

import pytest

_DEADLINE_S: Final = 60.0


def by_python_itself(function: Callable[..., Any], *arguments: Any) -> list[BaseException]:
    """Has C code alone call a function, in a thread; returns what that printed as ignored."""
    ignored: list[BaseException] = []
    ended = threading.Event()

    def note(error: Any) -> None:
        ignored.append(error.exc_value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "unraisablehook", note)
        call = functools.partial(function, *arguments)
        # The thread lets go of it at its very end.
        reference = weakref.ref(call, lambda _: ended.set())
        start_new_thread(call, ())
        del call
        assert ended.wait(_DEADLINE_S)
    assert reference() is None
    return ignored
