"""Where a stack stands, copied: it is named later on, without the script's frames."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Protocol


class Place(Protocol):
    """What is asked of a frame, or of a copy of one."""

    @property
    def f_code(self) -> CodeType: ...

    @property
    def f_lasti(self) -> int: ...

    @property
    def f_lineno(self) -> int | None: ...

    @property
    def f_back(self) -> Place | None: ...


class CopiedFrame:
    """A frame of a thread's, without what the script keeps in it.

    Attributes:
        f_lineno: None: its code tells it by `f_lasti`, where somebody asks.
    """

    __slots__ = ("f_back", "f_code", "f_lasti")

    f_lineno = None

    def __init__(self, frame: FrameType) -> None:
        self.f_code, self.f_lasti = frame.f_code, frame.f_lasti
        self.f_back: CopiedFrame | None = None


def copied(frame: FrameType) -> CopiedFrame:
    """Returns a copy of a stack, which begins with the innermost of its frames."""
    innermost = last = CopiedFrame(frame)
    above = frame.f_back
    while above is not None:
        last.f_back = CopiedFrame(above)
        last, above = last.f_back, above.f_back
    return innermost
