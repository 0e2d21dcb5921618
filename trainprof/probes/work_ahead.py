"""What a stream does for all samples ahead of its selection, in functions of its own too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from trainprof.probes.carried_state import carried, names_in, names_of
from trainprof.probes.function_text import FunctionText

# By what a generator of random numbers goes, and what it is asked for.
_GENERATORS: Final = ("random", "rng")
# fmt: off
_DRAWING: Final = (
    "rand", "randn", "randint", "randperm", "randrange", "rand_like", "randn_like", "normal",
    "standard_normal", "uniform", "choice", "choices", "shuffle", "permutation", "bernoulli",
    "multinomial", "gauss",
)
# fmt: on


class WorkAhead:
    """What functions of a file and of a class do, that others of them call by their names."""

    def __init__(
        self, of_file: Mapping[str, ast.FunctionDef], of_class: Mapping[str, ast.FunctionDef]
    ) -> None:
        self._of_file, self._of_class = of_file, of_class
        self._methods = {id(one) for one in of_class.values()}

    def carries(
        self,
        loop: ast.For | ast.While,
        text: FunctionText,
        ahead: Sequence[ast.stmt],
        mine: Sequence[ast.stmt] = (),
        behind: Sequence[ast.stmt] = (),
    ) -> bool:
        """Whether rounds of a loop need what others have done: for all samples, not for theirs.

        Args:
            loop: It.
            text: Of the function that it stands in.
            ahead, mine, behind: What is done for all, for a worker's own, and then for all.
        """
        if isinstance(loop, ast.For) and self.makes_by_carrying(loop.iter, text):
            return True
        own = names_in(loop.target) if isinstance(loop, ast.For) else set()
        of_self, methods = self._self_of(text), self._of_class
        found = carried(ahead, mine, behind, own=own, of_self=of_self, methods=methods)
        return bool(found - counting(loop))

    def makes_by_carrying(self, value: ast.AST, text: FunctionText) -> bool:
        """Whether what a value goes over is made one of the other, by functions of its own."""
        return any(
            self._is_carrying(one)
            for one, is_once in self._functions_in([(value, text)])
            if one.given or not is_once
        )

    def _is_carrying(self, text: FunctionText) -> bool:
        function = text.function
        if not text.given:
            # Of one that is mapped, what stays is what its object keeps.
            of_self = self._self_of(text)
            own = names_of(function.args) - {of_self or ""}
            found = carried(function.body, own=own, of_self=of_self, methods=self._of_class)
            return any(one.startswith(f"{of_self}.") for one in found)
        return any(self.carries(loop, text, loop.body) for loop in _giving(text))

    def draws_numbers(self, source: ast.AST, ahead: Sequence[ast.stmt], text: FunctionText) -> bool:
        """Whether random numbers seem to be drawn for each sample, by names.

        Args:
            source: What is gone over: to make it may draw some once.
            ahead: What is done with each.
            text: Of the function that these stand in.
        """
        each: list[tuple[ast.AST, FunctionText]] = [(one, text) for one in ahead]
        each += [(one, text) for one in _elements(source)]
        for one, is_once in self._functions_in([(source, text)]):
            each += [(x, one) for loop in _giving(one) for x in loop.body]
            each += [] if one.given or is_once else [(one.function, one)]
        called = [one.function for one, _ in self._functions_in(each)]
        return any(
            isinstance(node, ast.Call) and _draws(node.func)
            for one in (*(node for node, _ in each), *called)
            for node in ast.walk(one)
        )

    def _functions_in(
        self, nodes: Iterable[tuple[ast.AST, FunctionText]]
    ) -> Iterator[tuple[FunctionText, bool]]:
        """Goes through its own functions that are named there, and in those again.

        With whether one is called there, and not for each element of something.
        """
        seen: set[tuple[int, bool]] = set()
        waiting = [*nodes]
        while waiting:
            node, within = waiting.pop()
            called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
            called -= {id(one) for element in _elements(node) for one in ast.walk(element)}
            for inner in ast.walk(node):
                meant = within.meant(inner) if isinstance(inner, ast.Name) else None
                if meant is not None and meant is not inner and (id(meant), False) not in seen:
                    seen.add((id(meant), False))
                    waiting.append((meant, within))
                function, is_once = self._named(inner, within), id(inner) in called
                if function is not None and (id(function), is_once) not in seen:
                    seen.add((id(function), is_once))
                    found = FunctionText(function)
                    yield found, is_once
                    waiting += [(one, found) for one in function.body]

    def _named(self, node: ast.AST, text: FunctionText) -> ast.FunctionDef | None:
        if isinstance(node, ast.Name):
            return self._of_file.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._of_class.get(node.attr) if node.value.id == self._self_of(text) else None
        return None

    def _self_of(self, text: FunctionText) -> str | None:
        """Returns the name of a method's object; None of a plain function."""
        return text.of_self if id(text.function) in self._methods else None


def _elements(node: ast.AST) -> list[ast.expr]:
    """Returns what generator expressions give."""
    return [one.elt for one in ast.walk(node) if isinstance(one, ast.GeneratorExp)]


def _giving(text: FunctionText) -> list[ast.For | ast.While]:
    """Returns the loops of a function that give what it gives."""
    given = {id(one) for one in text.given}
    return [
        node
        for node in text.nodes
        if isinstance(node, (ast.For, ast.While))
        and any(id(inner) in given for one in node.body for inner in ast.walk(one))
    ]


def counting(loop: ast.For | ast.While) -> set[str]:
    """Returns the names of what counts the rounds of a loop one by one, in its body."""
    return {
        node.target.id
        for node in loop.body
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
    }


def _draws(called: ast.expr) -> bool:
    names = []
    while isinstance(called, ast.Attribute):
        names.append(called.attr)
        called = called.value
    if isinstance(called, ast.Name):
        names.append(called.id)
    return any(one.strip("_") in _GENERATORS for one in names) or (
        bool(names) and names[0] in _DRAWING
    )
