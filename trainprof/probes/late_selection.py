"""Where a stream's workers leave out each other's samples only once they have made them.

Told by the text of its `__iter__`: nothing of it is called. Each worker goes through the same
samples and gives those whose number, modulo the number of workers, is its own: what stands ahead
of that question is done for all samples in each worker. So is what itertools.islice goes over that
`__iter__` returns. Whatever is written otherwise, or cannot be read, is taken for no such stream.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Final

# As torch's WorkerInfo has them, and as datasets keep them that ask for it once.
_NUMBER: Final = ("id", "worker_id")
_COUNT: Final = ("num_workers",)
# A name of a name of a name of a worker's number.
_DEPTH: Final = 4
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# start, stop and step, behind the iterable.
_SLICE_ARGUMENTS: Final = 4


@dataclass(frozen=True, slots=True)
class LateSelection:
    """Lines of an `__iter__`, from 1.

    Attributes:
        first, last: All that is done in them is done for all samples.
        at: Where is asked whose a sample is.
        function: The name of that which those lines are of.
    """

    first: int
    last: int
    at: int
    function: str = "__iter__"


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
    found = _Selecting(function, _named_functions(tree), _named_functions(holder)).found()
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
        self._function = function
        self._nodes = [*_own_nodes(function)]
        self._stands_for: dict[str, list[ast.expr]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.For):
                self._assign(node.target, node.iter)

    def found(self) -> LateSelection | None:
        """Returns the one selection that all samples pass; None where there is no such."""
        given = [node for node in self._nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]
        if not given:
            return self._returned()
        for node in self._nodes:
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
            return LateSelection(node.lineno, _end(node), node.lineno), [node]
        if not isinstance(node, ast.For):
            return None
        if self._is_slice(node.iter):
            selection = LateSelection(node.lineno, _end(node.iter), node.iter.lineno)
            return (selection, node.body) if node.body[0].lineno > selection.last else None
        for place, statement in enumerate(node.body):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            if self._keeps(statement, node):
                last, behind = _end(statement.test), statement.body
            elif self._leaves_out(statement, node):
                last, behind = _end(statement), node.body[place + 1 :]
            else:
                continue
            return LateSelection(node.lineno, last, statement.test.lineno), behind
        return None

    def _returned(self) -> LateSelection | None:
        """Returns the one selection that is returned where there are workers; else None."""
        returned = [one for one in self._nodes if isinstance(one, ast.Return) and one.value]
        alone, among = self._ids_below(is_none=True), self._ids_below(is_none=False)
        selecting = [one for one in returned if id(one) not in alone]
        if any(id(one) in among for one in selecting):
            selecting = [one for one in selecting if id(one) in among]
        if len(selecting) != 1:
            return None
        value = self._meant(selecting[0].value)
        if not isinstance(value, ast.Call) or not self._is_slice(value):
            return None
        source, at = self._meant(value.args[0]), value.lineno
        if isinstance(source, ast.GeneratorExp):
            return LateSelection(source.elt.lineno, _end(source.elt), at, "<genexpr>")
        made = self._made_by(source)
        if made is None:
            return None
        return LateSelection(made.lineno, _end(made), at, made.name)

    def _ids_below(self, *, is_none: bool) -> set[int]:
        """Returns the ids of what is done where something is None, or is not."""
        tests = [one for one in self._nodes if isinstance(one, ast.If)]
        bodies = [one.body for one in tests if _is_of_none(one.test) is is_none]
        return {id(node) for body in bodies for one in body for node in ast.walk(one)}

    def _meant(self, value: ast.expr | None) -> ast.expr | None:
        """Returns what a name stands for, where that is one thing; else the value itself."""
        known = self._stands_for.get(value.id, []) if isinstance(value, ast.Name) else []
        return known[0] if len(known) == 1 else value

    def _made_by(self, source: ast.expr | None) -> ast.FunctionDef | None:
        """Returns the function whose work it is to give, or to map, what a value goes over."""
        if not isinstance(source, ast.Call):
            return None
        by = source.args[0] if _name_of(source) == "map" and source.args else source.func
        if isinstance(by, ast.Name):
            return self._of_file.get(by.id)
        of_self = self._function.args.args[0].arg if self._function.args.args else None
        if isinstance(by, ast.Attribute) and isinstance(by.value, ast.Name):
            return self._of_class.get(by.attr) if by.value.id == of_self else None
        return None

    def _keeps(self, statement: ast.If, loop: ast.For) -> bool:
        """Whether what stands in it is for a worker's own samples, and on lines of its own."""
        is_apart = statement.body[0].lineno > _end(statement.test)
        return is_apart and self._asks(statement.test, self._counted(loop), ast.Eq, ast.And)

    def _leaves_out(self, statement: ast.If, loop: ast.For) -> bool:
        """Whether it goes on with the next sample where one is another worker's."""
        *others, leaves = statement.body
        is_plain = all(isinstance(one, ast.AugAssign) for one in others)
        if not isinstance(leaves, ast.Continue) or not is_plain:
            return False
        return self._asks(statement.test, self._counted(loop), ast.NotEq, ast.Or)

    def _asks(
        self,
        test: ast.expr,
        counted: set[str],
        how: type[ast.cmpop],
        joined_by: type[ast.boolop],
    ) -> bool:
        """Whether a test compares a number of samples, modulo workers, with a worker's own."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, joined_by):
            return any(self._asks(one, counted, how, joined_by) for one in test.values)
        if (
            not isinstance(test, ast.Compare)
            or len(test.ops) != 1
            or not isinstance(test.ops[0], how)
        ):
            return False
        sides = (test.left, test.comparators[0])
        return any(
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Mod)
            and isinstance(one.left, ast.Name)
            and one.left.id in counted
            and self._is_told(one.right, _COUNT)
            and self._is_told(other, _NUMBER)
            for one, other in (sides, sides[::-1])
        )

    def _counted(self, loop: ast.For) -> set[str]:
        """Returns the names of what counts the rounds of a loop one by one."""
        names = {
            node.target.id
            for node in loop.body
            if isinstance(node, ast.AugAssign)
            and isinstance(node.op, ast.Add)
            and isinstance(node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
            and node.value.value == 1
        }
        if _name_of(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple):
            first = loop.target.elts[0]
            names |= {first.id} if isinstance(first, ast.Name) else set()
        return names

    def _is_slice(self, value: ast.expr) -> bool:
        """Whether it is islice(..., number of the worker, None, how many there are)."""
        if _name_of(value) != "islice" or not isinstance(value, ast.Call):
            return False
        if len(value.args) != _SLICE_ARGUMENTS:
            return False
        _, start, stop, step = value.args
        is_open = isinstance(stop, ast.Constant) and stop.value is None
        return is_open and self._is_told(start, _NUMBER) and self._is_told(step, _COUNT)

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

    def _is_told(self, value: ast.expr, names: Sequence[str], depth: int = _DEPTH) -> bool:
        """Whether it is an attribute of one of these names, or but for them a constant."""
        if isinstance(value, ast.Attribute):
            return value.attr in names
        if not isinstance(value, ast.Name) or not depth:
            return False
        others = [x for x in self._stands_for.get(value.id, ()) if not isinstance(x, ast.Constant)]
        return bool(others) and all(self._is_told(one, names, depth - 1) for one in others)


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


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yields what is in a function, without functions and classes within it, in order."""
    waiting: list[ast.AST] = [*reversed(function.body)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _SCOPES):
            yield node
            waiting.extend(reversed([*ast.iter_child_nodes(node)]))


def _name_of(value: ast.expr) -> str:
    """Returns the last name of what is called, "" where nothing is."""
    called = value.func if isinstance(value, ast.Call) else None
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _end(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno
