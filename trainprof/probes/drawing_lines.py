"""Lines of a file at which generators draw what they give, or make it of, from somewhere.

What runs there and is none of the script's own functions reads the next record: of a file, of an
archive, by a library. Whoever goes through those records has to read each of them. Not so where it
is written there that each record is mapped, by what is called there itself.
"""

from __future__ import annotations

import ast
from typing import Final

from trainprof.probes.function_text import FunctionText, end_of, name_of

# That only clean a line as it is read.
_CLEANING: Final = ("strip", "lstrip", "rstrip", "decode")
_MAPPING: Final = ("map", "starmap")
# enumerate(islice(tqdm(map(...)))), by names.
_DEPTH: Final = 5


def drawing_lines(tree: ast.AST) -> set[int]:
    """Returns those of all generators of a file, from 1."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = {function.name for function in functions}
    return {line for one in functions for line in _lines_of(FunctionText(one), own)}


def _lines_of(text: FunctionText, own: set[str]) -> set[int]:
    given = text.given
    lines: set[int] = set()
    for node in text.nodes:
        if isinstance(node, ast.YieldFrom) and not _maps(node.value, text, own):
            lines.update(range(node.lineno, end_of(node) + 1))
        elif isinstance(node, ast.For) and node.body[0].lineno > end_of(node.iter):
            inside = {id(inner) for one in node.body for inner in ast.walk(one)}
            if any(id(one) in inside for one in given) and not _maps(node.iter, text, own):
                lines.update(range(node.lineno, end_of(node.iter) + 1))
    return lines


def _maps(value: ast.expr | None, text: FunctionText, own: set[str], depth: int = _DEPTH) -> bool:
    """Whether to go over it calls for each record what is no function of the file's own."""
    value = text.meant(value)
    if not depth:
        return False
    if isinstance(value, (ast.GeneratorExp, ast.ListComp)):
        called = [node.func for node in ast.walk(value.elt) if isinstance(node, ast.Call)]
        return any(_is_work(one, text, own) for one in called) or any(
            _maps(one.iter, text, own, depth - 1) for one in value.generators
        )
    if not isinstance(value, ast.Call):
        return False
    if name_of(value) in _MAPPING and value.args and _is_work(value.args[0], text, own):
        return True
    return any(_maps(one, text, own, depth - 1) for one in value.args)


def _is_work(called: ast.expr, text: FunctionText, own: set[str]) -> bool:
    """Whether it may be work that is seen at the line itself, not in a function called there."""
    if isinstance(called, ast.Attribute):
        is_of_self = isinstance(called.value, ast.Name) and called.value.id == text.of_self
        return not is_of_self and called.attr not in _CLEANING
    if isinstance(called, ast.Name):
        return called.id not in own
    return not isinstance(called, ast.Lambda)
