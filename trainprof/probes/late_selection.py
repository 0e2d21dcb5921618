"""Where a stream's workers leave out each other's samples only once they have made them.

Told by the text of its `__iter__`: nothing of it is called. Each worker goes through the same
samples and gives those whose number, modulo the number of workers, is its own (or modulo that of
the workers of all ranks): what stands ahead of that question is done for all samples in each
worker. So is what itertools.islice goes over that `__iter__` returns. Whatever is written
otherwise, or cannot be read, is taken for no such stream. Where samples need what was done for
those ahead of them (a running state, a window), no worker can leave that out.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Final

from trainprof.probes.drawing_lines import drawing_lines
from trainprof.probes.function_text import FunctionText, end_of, name_of
from trainprof.probes.work_ahead import WorkAhead, counting
from trainprof.probes.worker_share import WorkerShare

# start, stop and step, behind the iterable.
_SLICE_ARGUMENTS: Final = 4


@dataclass(frozen=True, slots=True)
class LateSelection:
    """Lines of an `__iter__`, from 1.

    Attributes:
        first, last: All that is done in them is done for all samples.
        at: Where is asked whose a sample is.
        function: The name of that which those lines are of.
        drawn: Lines of its file at which records are only read: see `drawing_lines`.
        is_random: What is done for all samples draws random numbers, as it seems.
        is_carried: It is what later samples need.
    """

    first: int
    last: int
    at: int
    function: str = "__iter__"
    drawn: tuple[int, ...] = ()
    is_random: bool = False
    is_carried: bool = False


def late_selection(code: CodeType, text: str) -> LateSelection | None:
    """Returns where a function that gives samples selects those of its worker; else None.

    Args:
        code: Of the function.
        text: Of the file that it stands in.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text that is not ours
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    holder, function = _function_of(code, tree)
    if function is None:
        return None
    try:
        found = _Selecting(function, _named_functions(tree), _named_functions(holder)).found()
    except RecursionError:  # of an expression that is very deep
        return None
    found = found and replace(found, drawn=tuple(sorted(drawing_lines(tree))))
    # The file may have been changed since it was imported.
    are_there = found is not None and _own_lines(found, function) <= {
        line for *_, line in code.co_lines()
    }
    return found if are_there else None


def _function_of(code: CodeType, tree: ast.AST) -> tuple[ast.AST, ast.FunctionDef | None]:
    """Returns the function that code was compiled from, and what it stands in."""
    for holder in ast.walk(tree):
        for node in ast.iter_child_nodes(holder):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                begins = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if begins == code.co_firstlineno:
                    return holder, node
    return tree, None


def _named_functions(holder: ast.AST) -> dict[str, ast.FunctionDef]:
    """Returns the functions that stand right in a file or a class."""
    body = getattr(holder, "body", ()) if isinstance(holder, (ast.Module, ast.ClassDef)) else ()
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef)}


def _own_lines(found: LateSelection, function: ast.FunctionDef) -> set[int]:
    """Returns those of the lines told that have to be of a function's own code."""
    return {found.at} if found.function != function.name else {found.first, found.at}


class _Selecting:
    """What a function's own statements tell of its selection."""

    def __init__(
        self,
        function: ast.FunctionDef,
        of_file: Mapping[str, ast.FunctionDef],
        of_class: Mapping[str, ast.FunctionDef],
    ) -> None:
        """`of_file`, `of_class`: what it may call by a name, or as a method of its own."""
        self._of_file, self._of_class = of_file, of_class
        self._text = FunctionText(function)
        self._share = WorkerShare(self._text)
        self._ahead = WorkAhead(of_file, of_class)

    def found(self) -> LateSelection | None:
        """Returns the one selection that all samples pass; None where there is no such."""
        given = self._text.given
        if not given:
            return self._returned()
        for node in self._text.nodes:
            selects = self._selects(node)
            if selects is not None:
                selection, behind = selects
                chosen = {id(inner) for one in behind for inner in ast.walk(one)}
                is_all = given and all(id(one) in chosen for one in given)
                return selection if is_all else None
        return None

    def _selects(self, node: ast.AST) -> tuple[LateSelection, Sequence[ast.AST]] | None:
        """Returns the selection that a statement makes, and what is done to its own samples."""
        if isinstance(node, ast.YieldFrom) and self._is_slice(node.value):
            selection = LateSelection(node.lineno, end_of(node), node.lineno)
            return self._over(selection, node), [node]
        if not isinstance(node, ast.For):
            return None
        if self._is_slice(node.iter):
            selection = LateSelection(node.lineno, end_of(node.iter), node.iter.lineno)
            is_apart = node.body[0].lineno > selection.last
            return (self._over(selection, node.iter), node.body) if is_apart else None
        for place, statement in enumerate(node.body):
            if not isinstance(statement, ast.If):
                continue
            ahead, others = node.body[:place], node.body[place + 1 :]
            if self._keeps(statement, node):
                is_own, behind = True, statement.body
                carries = self._ahead.carries(node, self._text, ahead, [statement], others)
            elif self._leaves_out(statement, node):
                is_own, behind = False, [*statement.orelse, *others]
                carries = self._ahead.carries(node, self._text, ahead, [statement, *others])
            else:
                continue
            last = self._last_ahead(statement.test, self._counted(node), is_own=is_own)
            selection = LateSelection(
                node.lineno,
                last,
                statement.test.lineno,
                is_random=self._ahead.draws_numbers(node.iter, ahead, self._text),
                is_carried=carries,
            )
            return selection, behind
        return None

    def _over(self, selection: LateSelection, made: ast.AST) -> LateSelection:
        """Returns a selection with what is known of the functions that make what it is of."""
        return replace(
            selection,
            is_random=self._ahead.draws_numbers(made, (), self._text),
            is_carried=self._ahead.makes_by_carrying(made, self._text),
        )

    def _returned(self) -> LateSelection | None:
        """Returns the one selection that is returned where there are workers; else None."""
        returned = [one for one in self._text.nodes if isinstance(one, ast.Return) and one.value]
        alone, among = self._ids_below(is_none=True), self._ids_below(is_none=False)
        selecting = [one for one in returned if id(one) not in alone]
        if any(id(one) in among for one in selecting):
            selecting = [one for one in selecting if id(one) in among]
        if len(selecting) != 1:
            return None
        value = self._text.meant(selecting[0].value)
        if not isinstance(value, ast.Call) or not self._is_slice(value):
            return None
        source, at = self._text.meant(value.args[0]), value.lineno
        if isinstance(source, ast.GeneratorExp):
            of_it = LateSelection(source.elt.lineno, end_of(source.elt), at, "<genexpr>")
            return self._over(of_it, source)
        made = self._made_by(source)
        if made is None or source is None:
            return None
        return self._over(LateSelection(made.lineno, end_of(made), at, made.name), source)

    def _ids_below(self, *, is_none: bool) -> set[int]:
        """Returns the ids of what is done where something is None, or is not."""
        tests = [one for one in self._text.nodes if isinstance(one, ast.If)]
        bodies = [one.body for one in tests if _is_of_none(one.test) is is_none]
        return {id(node) for body in bodies for one in body for node in ast.walk(one)}

    def _made_by(self, source: ast.expr | None) -> ast.FunctionDef | None:
        """Returns the function whose work it is to give, or to map, what a value goes over."""
        if not isinstance(source, ast.Call):
            return None
        by = source.args[0] if name_of(source) == "map" and source.args else source.func
        if isinstance(by, ast.Name):
            return self._of_file.get(by.id)
        if isinstance(by, ast.Attribute) and isinstance(by.value, ast.Name):
            return self._of_class.get(by.attr) if by.value.id == self._text.of_self else None
        return None

    def _keeps(self, statement: ast.If, loop: ast.For) -> bool:
        """Whether what stands in it is for a worker's own samples, and on lines of its own."""
        is_apart = statement.body[0].lineno > end_of(statement.test)
        if not is_apart or (statement.orelse and not _goes_on(statement.orelse)):
            return False
        return self._asks(statement.test, self._counted(loop), is_own=True)

    def _leaves_out(self, statement: ast.If, loop: ast.For) -> bool:
        """Whether it goes on with the next sample where one is another worker's."""
        is_plain = _goes_on(statement.body)
        return is_plain and self._asks(statement.test, self._counted(loop), is_own=False)

    def _last_ahead(self, test: ast.expr, counted: set[str], *, is_own: bool) -> int:
        """Returns the last line of what is done for all samples, with what a test asks besides."""
        if isinstance(test, ast.BoolOp) and self._asks(test.values[0], counted, is_own=is_own):
            return test.lineno - 1  # the others are asked of a worker's own alone
        return end_of(test)

    def _asks(self, test: ast.expr, counted: set[str], *, is_own: bool) -> bool:
        """Whether a test holds only where a sample is a worker's own; or always where it is not.

        Args:
            test: It compares a number of samples, modulo workers, with a worker's own; or that less
                the worker's own, modulo workers, with 0.
            counted: Names of such numbers.
            is_own: Which of both.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._asks(test.operand, counted, is_own=not is_own)
        if isinstance(test, ast.BoolOp):
            is_joined = isinstance(test.op, ast.And if is_own else ast.Or)
            return is_joined and any(self._asks(x, counted, is_own=is_own) for x in test.values)
        if not isinstance(test, ast.Compare):
            return not is_own and self._is_distance(test, counted)
        if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq if is_own else ast.NotEq):
            return False
        sides = (test.left, test.comparators[0])
        return any(
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Mod)
            and (
                (_is_one_of(one.left, counted) and self._share.is_of(other, one.right))
                or (_is_zero(other) and self._is_distance(one, counted))
            )
            for one, other in (sides, sides[::-1])
        )

    def _is_distance(self, value: ast.expr, counted: set[str]) -> bool:
        """Whether it is 0 for a worker's own samples alone: (number - worker) % workers."""
        return (
            isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Mod)
            and isinstance(value.left, ast.BinOp)
            and isinstance(value.left.op, ast.Sub)
            and _is_one_of(value.left.left, counted)
            and self._share.is_of(value.left.right, value.right)
        )

    def _counted(self, loop: ast.For) -> set[str]:
        """Returns the names of what counts the rounds of a loop one by one."""
        names = counting(loop)
        if name_of(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple):
            first = loop.target.elts[0]
            names |= {first.id} if isinstance(first, ast.Name) else set()
        return names

    def _is_slice(self, value: ast.expr) -> bool:
        """Whether it is islice(..., number of the worker, None, how many there are)."""
        if name_of(value) != "islice" or not isinstance(value, ast.Call):
            return False
        if len(value.args) != _SLICE_ARGUMENTS:
            return False
        _, start, stop, step = value.args
        is_open = isinstance(stop, ast.Constant) and stop.value is None
        return is_open and self._share.is_of(start, step)


def _goes_on(body: Sequence[ast.stmt]) -> bool:
    """Whether all that is done is to count, and to go on with the next sample."""
    *others, leaves = body
    return isinstance(leaves, ast.Continue) and all(isinstance(x, ast.AugAssign) for x in others)


def _is_one_of(value: ast.expr, names: set[str]) -> bool:
    return isinstance(value, ast.Name) and value.id in names


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) is int and value.value == 0


def _is_of_none(test: ast.expr) -> bool | None:
    """Whether a test holds where something is None: True; where it is not: False; else None."""
    if isinstance(test, ast.Name):
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True if isinstance(test.operand, ast.Name) else None
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    other = test.comparators[0]
    is_none = isinstance(other, ast.Constant) and other.value is None
    return isinstance(test.ops[0], ast.Is) if is_none else None
