"""Whole numbers as options take them: 1, 250."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import typer

# More fit neither a run nor an int64.
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


def at_least(low: int, *, at_most: int | None = None) -> Callable[[str | int], int]:
    """Returns a parser of whole numbers from `low` on, up to `at_most` if there is a limit."""
    wanted = f"of at least {low}" if at_most is None else f"from {low} to {at_most}"

    def parse(text: str | int) -> int:
        is_number = _DIGITS.fullmatch(str(text)) is not None
        if not is_number or int(text) < low or (at_most is not None and int(text) > at_most):
            raise typer.BadParameter(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return parse
