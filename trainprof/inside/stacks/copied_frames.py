"""Copies of threads' stacks, to be named later without the script's frames.

Whoever holds a frame keeps alive what it refers to, and while Python code holds another thread's,
that thread may run on. So frames are asked for, read and released within one call into C, during
which the GIL is held.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, repeat, starmap, tee
from operator import attrgetter, itemgetter
from types import CodeType, FrameType
from typing import Any, Final

_STANDS: Final = attrgetter("f_code", "f_lasti")
_CODE: Final = attrgetter("f_code")
_CODE_AND_GLOBALS: Final = attrgetter("f_code", "f_globals")
_FOLLOWED: Final[Callable[..., Any]] = getattr
_ONCE: Final[tuple[tuple[()]]] = ((),)


class CopiedFrame:
    """A frame without the script's values; its code gives the line number of `f_lasti`."""

    __slots__ = ("f_back", "f_code", "f_lasti")

    f_lineno = None

    def __init__(self, code: CodeType, lasti: int, back: CopiedFrame | None) -> None:
        self.f_code, self.f_lasti, self.f_back = code, lasti, back


Place = FrameType | CopiedFrame


def stack_of(thread: int) -> CopiedFrame | None:
    """Returns a copy of a thread's innermost frame and, behind it, of all others; None if gone."""
    places: list[tuple[CodeType, int]] = []
    # Each frame's `f_back`, down to the outermost's None.
    stack: Iterator[Any] = accumulate(chain(_frame_of(thread), repeat("f_back")), _FOLLOWED)
    with suppress(AttributeError, KeyError):
        places.extend(map(_STANDS, stack))
    copied = None
    for code, lasti in reversed(places):
        copied = CopiedFrame(code, lasti, copied)
    return copied


def codes_by_thread() -> dict[int, CodeType]:
    """Returns the code that each thread is in, innermost, by its ident."""
    frames, same = tee(starmap(sys._current_frames, _ONCE))
    codes = map(_CODE, chain.from_iterable(map(dict.values, same)))
    pairs = [*zip(chain.from_iterable(frames), codes, strict=True)]
    # Before any other call: `tee` keeps what it gave.
    del frames, same
    return dict(pairs)


def beginning_of_child() -> CodeType | None:
    """Returns the code that runs a child of multiprocessing: what called it is the parent's."""
    module = sys.modules.get("multiprocessing.process")
    begins = getattr(getattr(module, "BaseProcess", None), "_bootstrap", None)
    return getattr(begins, "__code__", None)


def globals_of(thread: int, code: CodeType) -> dict[str, Any] | None:
    """Returns the names that a thread's innermost code has; None where that is no longer `code`."""
    try:
        now, names = next(map(_CODE_AND_GLOBALS, _frame_of(thread)))
    except KeyError:
        return None
    return names if now is code else None


def _frame_of(thread: int) -> Iterator[FrameType]:
    return map(itemgetter(thread), starmap(sys._current_frames, _ONCE))
