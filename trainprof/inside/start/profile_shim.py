"""`@profile` for scripts that were written for kernprof: never a NameError.

It does nothing, unless lines are timed.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")


class IdleProfile:
    """Stands in for line_profiler's profiler object; functions are returned as they are.

    What that has is here, and times nothing: code is run, statistics are empty and not written.
    """

    def __call__(self, function: T) -> T:
        return function

    wrap_callable = __call__

    def __enter__(self) -> IdleProfile:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def _do_nothing(self, *args: object, **kwargs: object) -> None:
        return None

    add_function = enable = disable = enable_by_count = disable_by_count = _do_nothing
    dump_stats = print_stats = _do_nothing

    def _add_none(self, *args: object, **kwargs: object) -> int:
        return 0

    add_callable = add_class = add_module = _add_none

    def get_stats(self) -> SimpleNamespace:
        return SimpleNamespace(timings={}, unit=1e-6)

    def run(self, command: str) -> IdleProfile:
        names = sys.modules["__main__"].__dict__
        return self.runctx(command, names, names)

    def runctx(self, command: str, globals: Any, locals: Any) -> IdleProfile:
        exec(command, globals, locals)
        return self

    def runcall(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return function(*args, **kwargs)


def install(profile: object) -> None:
    """Puts `profile` where kernprof does: all modules of the script find it."""
    builtins.profile = profile  # type: ignore[attr-defined]


def install_in_script(profile: object) -> None:
    """Puts it into the script's globals, too, which would be saved with the script's own.

    A script with the guard `if 'profile' not in globals(): ...` looks only there.
    """
    install(profile)
    sys.modules["__main__"].__dict__.setdefault("profile", profile)
