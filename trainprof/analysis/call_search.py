"""Finds calls in a Python file's text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from trainprof.analysis.source_text import NotMechanical


def call_at(
    tree: ast.AST, line: int, names: Collection[str], ends_at: Sequence[int] | None = None
) -> ast.Call:
    """Returns the call that a line makes of what has one of some names.

    Args:
        tree: Of a file.
        line: Where it is made.
        names: Of what is called, the best known one first; another that the file gives it will do.
        ends_at: Its last line, and the column behind it; None where that is not known.

    Raises:
        NotMechanical: If there is none, or it is not known which one it is.
    """
    name = next(iter(names))
    known = {*names, *_other_names(tree, names)}
    if ends_at is not None:
        found = [node for node in _all_calls(tree) if _end(node) == tuple(ends_at)]
        called = name_of(found[0].func) if found else ""
        if called not in known:
            by = f"by {called}(...)" if called else "in another way"
            raise NotMechanical(f"line {line} builds {name} {by}: what that hands on is not known")
        return found[0]
    spanning = [node for node in calls_of(tree, known) if _spans(node, line)]
    if not spanning:
        raise NotMechanical(f"line {line} holds no call of {name}")
    beginning = [node for node in spanning if node.lineno == line]
    if len(beginning) > 1:
        raise NotMechanical(
            f"line {line} holds {len(beginning)} calls of {name}, and it is not known which it is"
        )
    return max(beginning or spanning, key=lambda node: (node.lineno, node.col_offset))


def calls_at(tree: ast.AST, line: int, names: Collection[str]) -> list[ast.Call]:
    """Returns all calls of what has one of some names that a line is part of.

    Raises:
        NotMechanical: If there is none.
    """
    found = [node for node in calls_of(tree, names) if _spans(node, line)]
    if not found:
        raise NotMechanical(f"line {line} holds no call of {' or '.join(names)}")
    return found


def has_call_at(tree: ast.AST, line: int, names: Collection[str]) -> bool:
    """Whether a line is part of a call of what has one of some names."""
    return any(_spans(node, line) for node in calls_of(tree, names))


def calls_of(tree: ast.AST, names: Collection[str]) -> list[ast.Call]:
    """Returns the calls of what has one of some names."""
    return [node for node in _all_calls(tree) if name_of(node.func) in names]


def names_given(tree: ast.AST, name: str) -> set[str]:
    """Returns a name, and others that the file gives the same thing."""
    return {name, *_other_names(tree, (name,))}


def name_of(function: ast.expr) -> str:
    """Returns by which name something is called, "" where it has none."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constructor_call(tree: ast.AST, line: int) -> tuple[ast.Call, bool] | None:
    """Returns how the constructor that begins at a line calls that of its base.

    Returns:
        The call, and whether it hands over `self` by itself, as super().__init__(...) does not;
        None where there is not exactly one.
    """
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and _begins(node) == line
    ]
    calls = calls_of(functions[0], ("__init__",)) if len(functions) == 1 else []
    if len(calls) != 1:
        return None
    function = calls[0].func
    by_super = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call)
    return calls[0], not by_super


def _begins(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(node.lineno for node in function.decorator_list)])


def _all_calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _other_names(tree: ast.AST, names: Collection[str]) -> set[str]:
    """Returns names that a file gives what has some names: on import, or by a plain assignment."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname for one in node.names if one.asname and one.name in names}
        elif isinstance(node, ast.Assign) and name_of(node.value) in names:
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
