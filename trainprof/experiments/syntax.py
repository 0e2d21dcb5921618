"""What a piece of a script's text says by itself."""

from __future__ import annotations

import ast


def last_name(node: ast.expr) -> str | None:
    """Returns `c` of `c` and of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def constant(node: ast.expr) -> object:
    """Returns the value of a literal, None of anything else."""
    return node.value if isinstance(node, ast.Constant) else None
