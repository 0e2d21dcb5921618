"""What going back through a result takes, as hooks on its nodes tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.patcher import let_dynamo_skip

# Of one function.
_MOST_NODES: Final = 64


@dataclass(slots=True)
class BackwardTime:
    """What nodes of an autograd graph took."""

    took_ns: int = 0
    began_ns: int = 0


def time_back(
    result: Any, given: Iterable[Any], back: BackwardTime, now: Callable[[], int]
) -> None:
    """Has what goes back from a result to what it was made of tell how long that takes.

    Some functions are several of autograd's, each with a node.
    """
    ends = {one.grad_fn for one in given}
    stack: list[Any] = [result.grad_fn]
    nodes: set[Any] = set()
    while stack and len(nodes) < _MOST_NODES:
        node = stack.pop()
        if node is None or node in ends or node in nodes or is_leaf(node):
            continue
        nodes.add(node)
        stack += [found for found, _ in node.next_functions]
    begins, has_ended = _hooks(back, now)
    for node in nodes:
        node.register_prehook(begins)
        node.register_hook(has_ended)


def _hooks(
    back: BackwardTime, now: Callable[[], int]
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Returns what is to be called ahead of each node, and behind it."""

    def begins(_: Any) -> None:
        back.began_ns = now()

    def has_ended(_: Any, __: Any) -> None:
        back.took_ns += now() - back.began_ns

    for hook in (begins, has_ended):
        let_dynamo_skip(hook, and_all_below=True)
    return begins, has_ended
