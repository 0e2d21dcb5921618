"""Whole numbers as options take them: 1, 250."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import typer

# More fit neither a run nor an int64.
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


def at_least(low: int) -> Callable[[str | int], int]:
    """Returns a parser of whole numbers from `low` on."""

    def parse(text: str | int) -> int:
        if not _DIGITS.fullmatch(str(text)) or int(text) < low:
            raise typer.BadParameter(f"{text!r} is not a whole number of at least {low}")
        return int(text)

    return parse
