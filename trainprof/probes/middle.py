"""The middle of some numbers, as `statistics` tells it.

That module is none that torch imports: a script's folder may have a file of the same name, which
would be run in its place.
"""

from __future__ import annotations

from collections.abc import Iterable


def median(numbers: Iterable[float]) -> float:
    """Returns the middle one, or the mean of the two in the middle.

    Raises:
        ValueError: If there are none.
    """
    ordered = sorted(numbers)
    if not ordered:
        raise ValueError("no numbers")
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
