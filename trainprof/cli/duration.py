"""Durations as people write them: 0.5, 500ms, 90s, 10m, 1h."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

import typer

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h|)")


def seconds(text: str) -> float:
    """Returns the duration in seconds.

    Raises:
        typer.BadParameter: If it is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 0.5, 500ms, 90s, 10m or 1h")
    return float(found[1]) * _UNIT_S[found[2]]


def seconds_between(low: float, high: float = math.inf) -> Callable[[str | float], float]:
    """Returns a parser of durations from `low` to `high` seconds."""

    def parse(text: str | float) -> float:
        value = seconds(str(text))
        if not low <= value <= high:
            upper = "" if math.isinf(high) else f" and at most {high:g} s"
            raise typer.BadParameter(f"{text} is not at least {low:g} s{upper}")
        return value

    return parse
