"""`@profile` for scripts that were written for kernprof: never a NameError.

It does nothing, unless lines are timed.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any, TypeVar

T = TypeVar("T")


class IdleProfile:
    """Stands in for line_profiler's profiler object; functions are returned as they are."""

    def __call__(self, function: T) -> T:
        return function

    def __enter__(self) -> IdleProfile:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def add_function(self, function: Any) -> None:
        return None

    def enable_by_count(self) -> None:
        return None

    def disable_by_count(self) -> None:
        return None


def install(profile: object) -> None:
    """Puts `profile` where kernprof does, and into the script's globals too.

    A script with the guard `if 'profile' not in globals(): ...` looks only there.
    """
    builtins.profile = profile  # type: ignore[attr-defined]
    sys.modules["__main__"].__dict__.setdefault("profile", profile)
