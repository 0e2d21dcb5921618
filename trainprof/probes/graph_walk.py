"""For what the nodes of an autograd graph compute gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

# For nothing that is used; for something that is, and beside it for something that is not; only
# for what is used.
UNUSED: Final = 0
MIXED: Final = 1
USED: Final = 2
# The owner of whatever Python code in backward may be for.
ANYONE: Final = 1
# Of torch.compile: made of Python code, and without effects of its own.
COMPILED_NODE: Final = "CompiledFunctionBackward"
_LEAF: Final = "AccumulateGrad"
# Nodes between an operator and its weight.
_NEAR: Final = 2

# Of each thing that a node computes a gradient of: those whom it is for, as bits.
Needs = tuple[int, ...]


class GraphTooLarge(Exception):
    """It has more nodes than may be gone through."""


def needs_of(
    roots: Iterable[Any], owners_of: Callable[[Any], int], opaque: type, at_most: int
) -> dict[Any, Needs]:
    """Returns for each node above the leaves whom its gradients are for.

    Args:
        roots: Nodes that backward begins at.
        owners_of: Asked of each leaf once: who uses its gradient, as bits.
        opaque: Base class of nodes whose backward is Python code, which may do anything.
        at_most: So many nodes are gone through.

    Raises:
        GraphTooLarge: If there are more.
    """
    owners: dict[Any, int] = {}
    above: dict[Any, list[Any]] = {}
    needs: dict[Any, Needs] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in owners:
            stack.pop()
            continue
        nexts = above.get(node)
        if nexts is None:
            if len(above) + len(owners) >= at_most:
                raise GraphTooLarge
            if is_leaf(node):
                owners[node] = owners_of(node.variable)
                continue
            nexts = above[node] = [found for found, _ in node.next_functions if found is not None]
            missing = [found for found in nexts if found not in owners]
            if missing:
                stack.extend(missing)
                continue
        each = tuple(owners[found] for found in nexts)
        if isinstance(node, opaque) and type(node).__name__ != COMPILED_NODE:
            each = (ANYONE, *(one | ANYONE for one in each))
        needs[node] = each
        owners[node] = union(each)
    return needs


def leaf_near(node: Any) -> bool:
    """Whether a node is, or but turns round, the gradient of one leaf: a weight, transposed."""
    for _ in range(_NEAR):
        if is_leaf(node):
            return True
        nexts = [found for found, _ in node.next_functions if found is not None]
        if len(nexts) != 1:
            return False
        node = nexts[0]
    return is_leaf(node)


def is_leaf(node: Any) -> bool:
    """Whether a node only adds up the gradient of a tensor."""
    return type(node).__name__ == _LEAF


def union(needs: Needs) -> int:
    """Returns all those whom something is for."""
    all_of_them = 0
    for one in needs:
        all_of_them |= one
    return all_of_them


def use_of(needs: Needs, in_vain: int) -> int:
    """Returns what a node's gradients are for, where some owners use none."""
    is_used = [bool(one & ~in_vain) for one in needs]
    if not any(is_used):
        return UNUSED
    return USED if all(is_used) else MIXED
