"""What a piece of a script's text says by itself."""

from __future__ import annotations

import ast
import warnings


def parsed(text: bytes | None) -> ast.Module | None:
    """Returns a module's text as a tree, None where it has none."""
    if text is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the text says: they are not asked for here
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def last_name(node: ast.expr) -> str | None:
    """Returns `c` of `c` and of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def constant(node: ast.expr) -> object:
    """Returns the value of a literal, None of anything else."""
    return node.value if isinstance(node, ast.Constant) else None
