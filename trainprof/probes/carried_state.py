"""What the rounds of a loop hand on to each other, as its text has it.

A place (a name, or `self.x`) is handed on where a round reads it before it has surely set it anew,
and changes it: a running state, a window, what was seen so far. So is what methods change that are
called there. A count by a fixed number is not, where it is only compared or taken modulo, nor what
is made once, of nothing that a round has.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Final

from trainprof.probes.function_text import name_of

# fmt: off
_CHANGING: Final = (
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop",
    "popitem", "popleft", "push", "put", "remove", "reverse", "rotate", "setdefault", "sort",
    "update",
)
# fmt: on
_LEAVING: Final = (ast.Continue, ast.Break, ast.Return, ast.Raise)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def carried(
    ahead: Sequence[ast.stmt],
    mine: Sequence[ast.stmt] = (),
    behind: Sequence[ast.stmt] = (),
    *,
    own: set[str],
    of_self: str | None,
    methods: Mapping[str, ast.FunctionDef],
) -> set[str]:
    """Returns the places that rounds change for those that come.

    Args:
        ahead: What each round does first, in order.
        mine: Then only some do: what they change is theirs, and they may read what others did.
        behind: What all do in the end.
        own: Names that each round has set by the first.
        of_self: The name of the object whose methods are looked into.
        methods: These.
    """
    turn = _Round(own, of_self, methods)
    turn.do(ahead)
    changed, counted = set(turn.changed), set(turn.counted)
    turn.do(mine)
    turn.changed, turn.counted = changed, counted
    turn.do(behind)
    return (turn.read & (turn.changed | turn.counted)) | (turn.asked & turn.changed)


def names_in(target: ast.AST) -> set[str]:
    """Returns the names that are set where a target is."""
    return {
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


class _Round:
    """One round, statement by statement.

    Attributes:
        is_set: Places that are set by now, whatever branch was taken.
        changed: That may have been.
        counted: That were set to constants, or counted on by them, alone.
        read: Read before they were set.
        asked: Likewise, but only compared or taken modulo.
    """

    def __init__(
        self,
        own: set[str],
        of_self: str | None,
        methods: Mapping[str, ast.FunctionDef],
        entered: dict[str, _Round | None] | None = None,
    ) -> None:
        """`entered`: what methods do, as far as that is known; None of one that is gone through."""
        self._of_self, self._methods = of_self, methods
        self._entered = {} if entered is None else entered
        self.is_set = set(own)
        self.changed: set[str] = set()
        self.counted: set[str] = set()
        self.read: set[str] = set()
        self.asked: set[str] = set()

    def do(self, body: Sequence[ast.stmt]) -> bool:
        """Goes through statements; returns whether what follows them is surely left out."""
        return any(self._leaves(statement) for statement in body)

    def _leaves(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            self._look(statement.test)
            if self._makes_once(statement):
                return False
            return self._branch([statement.body, statement.orelse])
        if isinstance(statement, _LOOPS):
            begun = set(self.is_set)
            if isinstance(statement, ast.While):
                self._look(statement.test)
            else:
                self._look(statement.iter)
                self._put(statement.target)
            self.do(statement.body)
            self.is_set = begun
            self.do(statement.orelse)
        elif isinstance(statement, ast.Try):
            handlers = [one.body for one in statement.handlers]
            is_left = self._branch([[*statement.body, *statement.orelse], *handlers])
            return self.do(statement.finalbody) or is_left
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                self._look(item.context_expr)
                if item.optional_vars is not None:
                    self._put(item.optional_vars)
            return self.do(statement.body)
        elif isinstance(statement, ast.Match):
            self._look(statement.subject)
            self._branch([[], *(one.body for one in statement.cases)])
        elif not isinstance(statement, _SCOPES):
            self._plain(statement)
        return isinstance(statement, _LEAVING)

    def _branch(self, bodies: Sequence[Sequence[ast.stmt]]) -> bool:
        """Goes through what is done one or the other; returns whether all of it leaves."""
        begun, ends = set(self.is_set), []
        for body in bodies:
            self.is_set = set(begun)
            if not self.do(body):
                ends.append(self.is_set)
        self.is_set = set.intersection(*ends) if ends else begun
        return not ends

    def _makes_once(self, statement: ast.If) -> bool:
        """Goes through `if x is None: x = ...`, where that is of nothing that the round has."""
        made = _missing(statement.test)
        body = statement.body
        if made is None or statement.orelse or len(body) != 1:
            return False
        [first] = body
        if not isinstance(first, ast.Assign) or [_place(one) for one in first.targets] != [made]:
            return False
        used = {node.id for node in ast.walk(first.value) if isinstance(node, ast.Name)}
        if used & self.is_set:
            return False
        self._look(first.value)
        return True

    def _plain(self, statement: ast.stmt) -> None:
        """Goes through what is no block."""
        if isinstance(statement, ast.Assign):
            self._look(statement.value)
            for target in statement.targets:
                self._put(target, statement.value)
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._look(statement.value)
                self._put(statement.target, statement.value)
        elif isinstance(statement, ast.AugAssign):
            self._look(statement.value)
            place = _place(statement.target)
            if place is None:
                self._change(statement.target)
            elif isinstance(statement.value, ast.Constant):
                self.counted.add(place)
            else:
                self.changed.add(place)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._change(target)
        elif isinstance(statement, ast.Expr) and _changed_by(statement.value) is not None:
            self._change_by(statement.value)
        else:
            for child in ast.iter_child_nodes(statement):
                self._look(child)

    def _put(self, target: ast.expr, value: ast.expr | None = None) -> None:
        place = _place(target)
        if place is not None:
            (self.counted if isinstance(value, ast.Constant) else self.changed).add(place)
            self.is_set.add(place)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._put(one)
        elif isinstance(target, ast.Starred):
            self._put(target.value)
        else:
            self._change(target)

    def _change(self, target: ast.expr) -> None:
        """Notes that something within a place is another: `x[i] = ...`, `x.y.z = ...`."""
        if isinstance(target, ast.Subscript):
            self._look(target.slice)
        while isinstance(target, (ast.Subscript, ast.Attribute)) and _place(target) is None:
            target = target.value
        place = _place(target)
        if place is not None:
            self.changed.add(place)

    def _change_by(self, call: ast.expr) -> None:
        """Goes through `x.append(...)`, which reads nothing of x for anything else."""
        place = _changed_by(call)
        if place is not None and isinstance(call, ast.Call):
            self.changed.add(place)
            for given in (*call.args, *(one.value for one in call.keywords)):
                self._look(given)

    def _look(self, node: ast.AST) -> None:
        """Goes through an expression."""
        place = _place(node)
        if place is not None and not self._is_set(place):
            self.read.add(place)
        if isinstance(node, ast.NamedExpr):
            self._look(node.value)
            self._put(node.target, node.value)
        elif isinstance(node, _COMPREHENSIONS):
            begun = set(self.is_set)
            for one in node.generators:
                self._look(one.iter)
                self.is_set |= names_in(one.target)
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.comprehension):
                    self._look(child)
            for one in node.generators:
                for test in one.ifs:
                    self._look(test)
            self.is_set = begun
        elif isinstance(node, ast.Lambda):
            begun = set(self.is_set)
            self.is_set |= names_of(node.args)
            self._look(node.body)
            self.is_set = begun
        elif isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                self._ask(side)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            self._ask(node.left)
            self._look(node.right)
        else:
            changed = _changed_by(node)
            if changed is not None:
                self.changed.add(changed)
            for child in ast.iter_child_nodes(node):
                self._look(child)
            if isinstance(node, ast.Call):
                self._enter(node.func)

    def _ask(self, node: ast.expr) -> None:
        place = _place(node)
        if place is None:
            self._look(node)
        elif not self._is_set(place):
            self.asked.add(place)

    def _is_set(self, place: str) -> bool:
        """Whether the round has set it, or the object that it is of."""
        return place in self.is_set or place.partition(".")[0] in self.is_set

    def _enter(self, called: ast.expr) -> None:
        """Goes through a method that is called, for what it does to its object."""
        place = _place(called) or ""
        owner, _, name = place.partition(".")
        method = self._methods.get(name)
        if not name or owner != self._of_self or method is None:
            return
        if name not in self._entered:
            self._entered[name] = None  # it may call itself
            self._entered[name] = self._done_by(method)
        inner = self._entered[name]
        if inner is None:
            return
        self.read |= {x for x in inner.of_object(inner.read, owner) if not self._is_set(x)}
        self.asked |= {x for x in inner.of_object(inner.asked, owner) if not self._is_set(x)}
        self.changed |= inner.of_object(inner.changed, owner)
        self.counted |= inner.of_object(inner.counted, owner)
        self.is_set |= inner.of_object(inner.is_set, owner)

    def _done_by(self, method: ast.FunctionDef) -> _Round | None:
        """Returns what a method does; None of one that is given no object."""
        names = [one.arg for one in (*method.args.posonlyargs, *method.args.args)]
        if not names:
            return None
        own = names_of(method.args) - {names[0]}
        inner = _Round(own, names[0], self._methods, self._entered)
        inner.do(method.body)
        returns = [one for one in ast.walk(method) if isinstance(one, ast.Return)]
        if returns not in ([], [method.body[-1]]):
            inner.is_set = set()  # it may leave what comes behind undone
        return inner

    def of_object(self, places: set[str], name: str) -> set[str]:
        """Returns those that are of the object that the round has, by another name of it."""
        pairs = [place.partition(".") for place in places]
        return {f"{name}.{kept}" for owner, dot, kept in pairs if dot and owner == self._of_self}


def _place(node: ast.AST) -> str | None:
    """Returns what a place is called, "x" or "x.y"; None of whatever else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _changed_by(node: ast.AST) -> str | None:
    """Returns the place of a container that a call changes: `x.append(...)`."""
    if not isinstance(node, ast.Call) or name_of(node) not in _CHANGING:
        return None
    return _place(node.func.value) if isinstance(node.func, ast.Attribute) else None


def _missing(test: ast.expr) -> str | None:
    """Returns the place that is None, or nothing, where a test holds."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _place(test.operand)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
        other = test.comparators[0]
        return _place(test.left) if isinstance(other, ast.Constant) and not other.value else None
    return None


def names_of(arguments: ast.arguments) -> set[str]:
    """Returns the names that a function is given things by."""
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    starred = (arguments.vararg, arguments.kwarg)
    return {one.arg for one in every} | {one.arg for one in starred if one is not None}
