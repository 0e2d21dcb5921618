"""Which numbers in a function's text are a worker's own, and how many share the samples.

As torch's WorkerInfo has them, or with those of the ranks: number `rank * workers + worker`, or
`worker * ranks + rank`, of `ranks * workers`. What is multiplied with a worker's numbers is taken
for those of ranks, whatever it is called.
"""

from __future__ import annotations

import ast
from typing import Final

from trainprof.probes.function_text import FunctionText

# As torch's WorkerInfo has them, and as datasets keep them that ask for it once.
_NUMBER: Final = ("id", "worker_id")
_COUNT: Final = ("num_workers",)


class WorkerShare:
    """What of a function's text tells the share of a worker."""

    def __init__(self, text: FunctionText) -> None:
        self._text = text

    def is_of(self, number: ast.expr, count: ast.expr) -> bool:
        """Whether these are one of those that share samples and how many they are."""
        always = self._text.is_always
        # A name may stand for a worker's own where there are no ranks.
        if not always(lambda one: self._is_number(one) or self._is_number_of_all(one), number):
            return False
        if not always(lambda one: self._is_count(one) or self._is_count_of_all(one), count):
            return False
        return self._is_number(number) is self._is_count(count)

    def _is_number(self, value: ast.expr) -> bool:
        return self._text.is_always(
            lambda one: isinstance(one, ast.Attribute) and one.attr in _NUMBER, value
        )

    def _is_count(self, value: ast.expr) -> bool:
        return self._text.is_always(
            lambda one: isinstance(one, ast.Attribute) and one.attr in _COUNT, value
        )

    def _is_number_of_all(self, value: ast.expr) -> bool:
        """Whether it is `rank * workers + worker`, or `worker * ranks + rank`, in any order."""
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return False
        for product, other in ((value.left, value.right), (value.right, value.left)):
            if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                factors = (product.left, product.right)
                if any(map(self._is_count, factors)) and self._is_number(other):
                    return True
                if any(map(self._is_number, factors)):
                    return True
        return False

    def _is_count_of_all(self, value: ast.expr) -> bool:
        """Whether it is `ranks * workers`."""
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            return False
        return self._is_count(value.left) != self._is_count(value.right)
