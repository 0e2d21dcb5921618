"""Sizes and styles, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws what a case leaves open; the middle of each range where nothing is to be random."""

    def __init__(self, seed: str | None) -> None:
        """
        Args:
            seed: The same one draws the same; None draws nothing at random.
        """
        self._random = None if seed is None else Random(seed)

    def between(self, low: float, high: float) -> float:
        """Returns a number, small ones as likely as large ones: uniform in its logarithm."""
        share = 0.5 if self._random is None else self._random.random()
        return float(low * (high / low) ** share)

    def whole(self, low: int, high: int) -> int:
        return round(self.between(low, high))

    def one_of(self, things: Sequence[T]) -> T:
        return things[0] if self._random is None else self._random.choice(things)
