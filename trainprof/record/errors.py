"""The error that ends a trainprof command with one line and one hint."""

from __future__ import annotations

from typing import ClassVar


class TrainprofError(Exception):
    """An error that the user can act on (`hint`); only the command line catches it."""

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
