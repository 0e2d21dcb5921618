"""A function as its text has it: what stands in it, and what its names stand for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

# A name of a name of a name of a worker's number.
_DEPTH: Final = 4
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class FunctionText:
    """A function's own statements.

    Attributes:
        function: It.
        nodes: What is in it, without functions and classes within it, in order.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        self.nodes = [*_own_nodes(function)]
        self._stands_for: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.For):
                self._assign(node.target, node.iter)

    @property
    def given(self) -> list[ast.Yield | ast.YieldFrom]:
        """What it yields."""
        return [node for node in self.nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]

    @property
    def of_self(self) -> str | None:
        """The name of its first argument, a method's object."""
        return self.function.args.args[0].arg if self.function.args.args else None

    def meant(self, value: ast.expr | None) -> ast.expr | None:
        """Returns what a name stands for, where that is one thing; else the value itself."""
        known = self._stands_for.get(value.id, []) if isinstance(value, ast.Name) else []
        return known[0] if len(known) == 1 else value

    def is_always(
        self, holds: Callable[[ast.expr], bool], value: ast.expr, depth: int = _DEPTH
    ) -> bool:
        """Whether something holds of a value, or of all that a name stands for but constants."""
        if holds(value):
            return True
        if not isinstance(value, ast.Name) or not depth:
            return False
        others = [x for x in self._stands_for.get(value.id, ()) if not isinstance(x, ast.Constant)]
        return bool(others) and all(self.is_always(holds, one, depth - 1) for one in others)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Notes what a name stands for, or several at once do."""
        if isinstance(value, ast.IfExp):
            self._assign(target, value.body)
            self._assign(target, value.orelse)
        elif isinstance(target, ast.Name):
            self._stands_for.setdefault(target.id, []).append(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            are_pairs = len(values) == len(target.elts)
            for place, one in enumerate(target.elts):
                self._assign(one, values[place] if are_pairs else value)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [*reversed(function.body)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _SCOPES):
            yield node
            waiting.extend(reversed([*ast.iter_child_nodes(node)]))


def name_of(value: ast.expr) -> str:
    """Returns the last name of what is called, "" where nothing is."""
    called = value.func if isinstance(value, ast.Call) else None
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def end_of(node: ast.expr | ast.stmt) -> int:
    """Returns the number of its last line."""
    return node.end_lineno or node.lineno
