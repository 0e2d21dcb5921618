"""Copies threads' stacks, which are named later without the script's frames.

A held frame keeps its variables alive, and while Python code reads another thread's frame, that
thread may continue. So frames are read and released within one C call that keeps the GIL.
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
    """A frame without variables; its code and `f_lasti` give the line number."""

    __slots__ = ("f_back", "f_code", "f_lasti")

    f_lineno = None

    def __init__(self, code: CodeType, lasti: int, back: CopiedFrame | None) -> None:
        self.f_code, self.f_lasti, self.f_back = code, lasti, back


Place = FrameType | CopiedFrame


def stack_of(thread: int) -> CopiedFrame | None:
    """Returns a copy of a thread's innermost frame with its callers, None if it has ended."""
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
    """Returns each thread's innermost code by ident."""
    frames, same = tee(starmap(sys._current_frames, _ONCE))
    codes = map(_CODE, chain.from_iterable(map(dict.values, same)))
    pairs = [*zip(chain.from_iterable(frames), codes, strict=True)]
    # Before any other call: `tee` holds its items.
    del frames, same
    return dict(pairs)


def beginning_of_child() -> CodeType | None:
    """Returns the code that runs a child of multiprocessing; frames above are the parent's."""
    module = sys.modules.get("multiprocessing.process")
    begins = getattr(getattr(module, "BaseProcess", None), "_bootstrap", None)
    return getattr(begins, "__code__", None)


def globals_of(thread: int, code: CodeType) -> dict[str, Any] | None:
    """Returns the globals of a thread's innermost frame, None if it no longer runs `code`."""
    try:
        now, names = next(map(_CODE_AND_GLOBALS, _frame_of(thread)))
    except KeyError:
        return None
    return names if now is code else None


def _frame_of(thread: int) -> Iterator[FrameType]:
    return map(itemgetter(thread), starmap(sys._current_frames, _ONCE))
