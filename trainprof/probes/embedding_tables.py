"""Tables of embeddings that get a whole gradient for the few rows that a batch looks up."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.known_optimizers import parameters_in
from trainprof.probes.module_parts import modules_of
from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session

# A smaller table costs nothing to speak of.
_LARGE_NUMBERS: Final = 100_000
_MOST_TOLD: Final = 8
_LOOKED_UP: Final = "EmbeddingBackward0"
# Without these, an optimizer changes only rows that have a gradient.
_CHANGES_ALL: Final = ("momentum", "weight_decay")
_CHANGES_SOME: Final = ("SGD", "Adagrad")


@dataclass(slots=True)
class _Table:
    """A parameter, weakly, and the most indices that a pass of backward had for it."""

    weight: weakref.ref[Any]
    indices: int


@dataclass(slots=True)
class MetTables:
    """What looks at backward passes have told of them.

    Attributes:
        tables: By id of the parameter.
        took_ns: By their gradients.
        others_ns: By the rest of these passes.
    """

    tables: dict[int, _Table] = field(default_factory=dict)
    took_ns: int = 0
    others_ns: int = 0

    def nodes_in(self, nodes: Iterable[Any]) -> frozenset[Any]:
        """Returns the nodes of a graph that give a table its gradient, and notes their tables."""
        nodes = list(nodes)
        looked_up = [node for node in nodes if type(node).__name__ == _LOOKED_UP]
        if not looked_up:
            return frozenset()
        weights = {node: weight for node in looked_up if (weight := _table_of(node)) is not None}
        # What is multiplied with besides gets all of its gradient from there: tied weights.
        shared = {
            id(found.variable)
            for node in nodes
            if node not in weights
            for found, _ in node.next_functions
            if found is not None and is_leaf(found)
        }
        indices: dict[int, int] = {}
        met: dict[Any, Any] = {}
        for node, weight in weights.items():
            rows = _indices_of(node)
            if id(weight) not in shared and rows is not None:
                met[node] = weight
                indices[id(weight)] = indices.get(id(weight), 0) + rows
        for weight in met.values():
            table = self.tables.setdefault(id(weight), _Table(weakref.ref(weight), 0))
            table.indices = max(table.indices, indices[id(weight)])
        return frozenset(met)


def _table_of(node: Any) -> Any:
    """Returns the large parameter that a node gives a whole gradient; None if it is none."""
    [(leaf, _), *_] = node.next_functions or [(None, 0)]
    if leaf is None or not is_leaf(leaf) or getattr(node, "_saved_sparse", True):
        return None
    return leaf.variable if leaf.variable.numel() >= _LARGE_NUMBERS else None


def _indices_of(node: Any) -> int | None:
    """Returns how many rows were looked up; None where this torch does not tell.

    By the shape of what backward brings: to ask for the indices may call hooks of the script's.
    """
    brought = getattr(node, "_input_metadata", None)
    shape = tuple(brought[0].shape) if brought else ()
    rows = 1
    for size in shape[:-1]:
        rows *= int(size)
    return rows if shape else None


class BuiltEmbeddings:
    """Knows the user's line that built each nn.Embedding."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sites: dict[int, int] = {}

    def attach(self, torch: ModuleType, patcher: Patcher) -> None:
        note = patcher.guarded(self._note)

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                try:
                    original(self, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                note(self, sys._getframe(1))

            return __init__

        patcher.around_if_there(make, (torch.nn.Embedding, "__init__"))

    def _note(self, module: Any, caller: Any) -> None:
        weight = module._parameters.get("weight")
        if weight is not None and weight.numel() >= _LARGE_NUMBERS:
            self._sites[id(module)] = self._session.sites.find(caller)
            self._session.keep_track(module, self._sites, id(module))

    def told_of(
        self, met: MetTables, models: Iterable[tuple[Any, int]], optimizers: Iterable[Any]
    ) -> list[dict[str, Any]]:
        """Returns what is told of the tables that an optimizer changes, largest first.

        Args:
            met: By looks.
            models: That may hold them, each with the line that calls it, as an id.
            optimizers: Those that live.
        """
        sites = self._sites_in(models, met)
        told = []
        for optimizer in optimizers:
            owned = parameters_in(optimizer)
            for key, table in met.tables.items():
                weight = table.weight()
                if weight is not None and key in owned and owned[key] is weight:
                    told.append(
                        {
                            "rows": int(weight.shape[0]),
                            "numbers": weight.numel(),
                            "indices": table.indices,
                            "site": sites.get(key, 0),
                            "optimizer": type(optimizer).__qualname__,
                            "is_plain": _changes_some(optimizer, weight),
                        }
                    )
        told.sort(key=lambda one: -one["numbers"])
        return told[:_MOST_TOLD]

    def _sites_in(self, models: Iterable[tuple[Any, int]], met: MetTables) -> dict[int, int]:
        """Returns for tables, by id, where they were built, else where their model is called."""
        sites: dict[int, int] = {}
        for model, called_at in models:
            for holder in modules_of(model):
                key = id(getattr(holder, "__dict__", {}).get("_parameters", {}).get("weight"))
                if key in met.tables:
                    sites[key] = self._sites.get(id(holder), called_at)
        return sites


def _changes_some(optimizer: Any, weight: Any) -> bool:
    """Whether an optimizer leaves rows without a gradient as they are, by its settings."""
    if type(optimizer).__qualname__ not in _CHANGES_SOME:
        return False
    own = [one for one in optimizer.param_groups if any(weight is x for x in one["params"])]
    return not any(group.get(name) for group in own for name in _CHANGES_ALL)


def numbers_in(optimizers: Iterable[Any]) -> int:
    """Returns how many numbers optimizers change in a step."""
    return sum(one.numel() for optimizer in optimizers for one in parameters_in(optimizer).values())
