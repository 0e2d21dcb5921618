"""For what the nodes of an autograd graph compute gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

# For nothing that is used; for something that is, and beside it for something that is not; only
# for what is used.
UNUSED: Final = 0
MIXED: Final = 1
USED: Final = 2
_LEAF: Final = "AccumulateGrad"
# Of torch.compile: made of Python code, and without effects of its own.
_COMPILED: Final = "CompiledFunctionBackward"


class GraphTooLarge(Exception):
    """It has more nodes than may be gone through."""


def uses_of(
    roots: Iterable[Any], is_used: Callable[[Any], bool], opaque: type, at_most: int
) -> dict[Any, int]:
    """Returns for each node above the leaves what its gradients are for.

    Args:
        roots: Nodes that backward begins at.
        is_used: Asked of each leaf once.
        opaque: Base class of nodes whose backward is Python code, which may do anything: used.
        at_most: So many nodes are gone through.

    Raises:
        GraphTooLarge: If there are more.
    """
    used: dict[Any, bool] = {}
    above: dict[Any, list[Any]] = {}
    uses: dict[Any, int] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in used:
            stack.pop()
            continue
        nexts = above.get(node)
        if nexts is None:
            if len(above) + len(used) >= at_most:
                raise GraphTooLarge
            if type(node).__name__ == _LEAF:
                used[node] = is_used(node.variable)
                continue
            nexts = above[node] = [found for found, _ in node.next_functions if found is not None]
            missing = [found for found in nexts if found not in used]
            if missing:
                stack.extend(missing)
                continue
        each = [used[found] for found in nexts]
        is_opaque = isinstance(node, opaque) and type(node).__name__ != _COMPILED
        used[node] = is_opaque or any(each)
        uses[node] = UNUSED if not used[node] else USED if is_opaque or all(each) else MIXED
    return uses
