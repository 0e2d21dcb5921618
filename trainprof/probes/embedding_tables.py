"""Tables of embeddings that get a whole gradient for the few rows that a batch looks up."""

from __future__ import annotations

import os
import re
import weakref
from _thread import get_ident
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.gradient_reads import reads_gradients
from trainprof.probes.graph_look import Autograd, GraphLook
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.module_parts import named_modules_of
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import BackwardWatch, ModuleCall, Session
from trainprof.probes.user_texts import lines_with
from trainprof.record.schema import Topic

# Backward passes: the first ones are cold, then the graphs of some are gone through.
_SKIPPED, _ENOUGH_LOOKS, _LOOKS = 3, 4, 8
_MOST_WINDOWS: Final = 3
# Of all those graphs; to go through one takes some 5 us.
_MOST_NODES: Final = 20_000
_LEAF: Final = "AccumulateGrad"

# A smaller table costs nothing to speak of.
_LARGE_NUMBERS: Final = 100_000
_MOST_TOLD: Final = 8
_LOOKED_UP: Final = "EmbeddingBackward0"
# Without these, an optimizer changes only rows that have a gradient.
_CHANGES_ALL: Final = ("momentum", "weight_decay")
_CHANGES_SOME: Final = ("SGD", "Adagrad")
_BUILT: Final = r"\bEmbedding(?:\.from_pretrained)?\("


class EmbeddingTablesProbe:
    """Goes through the graph of a few backward passes, and times the nodes of tables in it."""

    name = "embedding_tables"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._process = torch, session, os.getpid()
        self._autograd = Autograd(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._windows = self._thread = 0
        self._is_told = self._is_counted = False
        self._clear()
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._meets = patcher.guarded(self._meet)
        session.at_parameters.append(patcher.guarded(self._optimizers.note))
        session.at_first_step.append(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _clear(self) -> None:
        self._passes = self._depth = self._looks = self._nodes = 0
        self._look: GraphLook | None = None
        self._tables = MetTables()
        self._models: dict[int, tuple[weakref.ref[Any], int]] = {}

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        self._stop()
        if self._is_told and os.getpid() == self._process:
            self._is_told = False
            self._session.note_state({self.name: None})
        if self._windows < _MOST_WINDOWS:
            self._windows += 1
            self._thread = get_ident()
            self._session.watch_backward(self._watch, is_on=True)

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)
        self._session.tell_modules(self._meets, False)
        self._clear()

    def _begins(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += get_ident() == self._thread
        if get_ident() != self._thread or self._depth > 1:
            return
        self._passes += 1
        if self._passes > _SKIPPED and self._autograd.may_look(args, kwargs):
            began_ns = self._session.now()
            with self._autograd.unseen():
                plain = [one for one in outputs if self._autograd.is_plain(one)]
                roots = [one.grad_fn for one in plain if one.grad_fn is not None]
                nodes = _nodes_above(roots, _MOST_NODES - self._nodes)
                of_tables = self._tables.nodes_in(nodes or ())
            if nodes is None:
                self._end()
                return
            if not self._is_counted:
                self._is_counted = True
                self._session.log.note(Topic.ENVIRONMENT, {"backward_nodes": len(nodes)})
            self._nodes += len(nodes)
            self._look = GraphLook(self._session, {node: node in of_tables for node in nodes})
            self._session.looked_since(began_ns)

    def _has_ended(self) -> None:
        if get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        look = self._look
        if self._depth or look is None:
            return
        self._look = None
        began_ns = self._session.now()
        took_ns = look.end(began_ns)
        self._tables.took_ns += took_ns.get(True, 0)
        self._tables.others_ns += took_ns.get(False, 0)
        self._looks += 1
        self._session.tell_modules(self._meets, bool(self._tables.tables))
        if self._looks == _LOOKS:
            self._end()
        self._session.looked_since(began_ns)

    def _meet(self, call: ModuleCall) -> None:
        if self._torch.is_grad_enabled():
            self._models[id(call.module)] = weakref.ref(call.module), call.site

    def _end(self) -> None:
        if self._looks >= _ENOUGH_LOOKS:
            self._tell()
        self._stop()

    def _tell(self) -> None:
        met, optimizers, sites = self._tables, self._optimizers.alive(), self._session.sites
        models = [(one(), site) for one, site in self._models.values()]
        with self._autograd.unseen():
            met.sites |= places_of(met.tables.keys(), models, sites.is_user_file, sites.of_line)
            tables = met.told(optimizers)
            numbers = numbers_in(optimizers)
        if tables:
            self._is_told = True
            told = {
                "looks": self._looks,
                "backward_share": met.took_ns / max(met.took_ns + met.others_ns, 1),
                "tables": tables,
                "numbers": numbers,
                "reads_gradients": reads_gradients(sites.is_user_file),
            }
            self._session.note_state({self.name: told})


@dataclass(slots=True)
class _Table:
    """A parameter, by its shape, and the most indices that a pass of backward had for it.

    Not by a weak reference: torch swaps no tensor that has one (`torch.utils.swap_tensors`).
    """

    shape: tuple[int, ...]
    indices: int


@dataclass(slots=True)
class MetTables:
    """What looks at backward passes have told of them.

    Attributes:
        tables: By id of the parameter.
        shared: Ids of parameters that something else goes back to as well: tied weights, a penalty
            on all of a table.
        sites: By id of the parameter: where it was built, or its model is called.
        took_ns: By their gradients.
        others_ns: By the rest of these passes.
    """

    tables: dict[int, _Table] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)
    sites: dict[int, int] = field(default_factory=dict)
    took_ns: int = 0
    others_ns: int = 0

    def nodes_in(self, nodes: Iterable[Any]) -> frozenset[Any]:
        """Returns the nodes of a graph that give a table its gradient, and notes their tables."""
        nodes = list(nodes)
        looked_up = [node for node in nodes if type(node).__name__ == _LOOKED_UP]
        if not looked_up and not self.tables:
            return frozenset()
        weights = {node: weight for node in looked_up if (weight := _table_of(node)) is not None}
        self.shared.update(
            id(found.variable)
            for node in nodes
            if node not in weights
            for found, _ in node.next_functions
            if found is not None and _is_leaf(found)
        )
        indices: dict[int, int] = {}
        met: dict[Any, Any] = {}
        for node, weight in weights.items():
            rows = _indices_of(node)
            if id(weight) not in self.shared and rows is not None:
                met[node] = weight
                indices[id(weight)] = indices.get(id(weight), 0) + rows
        for weight in met.values():
            table = self.tables.setdefault(id(weight), _Table(tuple(weight.shape), 0))
            table.indices = max(table.indices, indices[id(weight)])
        return frozenset(met)

    def told(self, optimizers: Iterable[Any]) -> list[dict[str, Any]]:
        """Returns what is told of tables that one of these optimizers changes, largest first."""
        told = []
        for optimizer in optimizers:
            owned = parameters_in(optimizer)
            for key, table in self.tables.items():
                weight = owned.get(key)
                if weight is None or key in self.shared:
                    continue
                if tuple(weight.shape) == table.shape:
                    told.append(
                        {
                            "rows": int(weight.shape[0]),
                            "numbers": weight.numel(),
                            "indices": table.indices,
                            "site": self.sites.get(key, 0),
                            "optimizer": type(optimizer).__qualname__,
                            "is_plain": _changes_some(optimizer, weight),
                        }
                    )
        told.sort(key=lambda one: -one["numbers"])
        return told[:_MOST_TOLD]


def places_of(
    tables: Collection[int],
    models: Iterable[tuple[Any, int]],
    is_user_file: Callable[[str], bool],
    of_line: Callable[[str, int], int],
) -> dict[int, int]:
    """Returns where tables are built, by the text of the user's files, else their models' calls.

    By the name that a model has for it, or as the only line that builds any: as one that builds it
    is called, nobody looks.

    Args:
        tables: Ids of their parameters.
        models: That may hold them, each with the line that calls it, as an id.
        is_user_file: Of a path.
        of_line: Returns the id of a line of a file.
    """
    found: dict[int, int] = {}
    any_of_them = lines_with(is_user_file, re.compile(_BUILT))
    for model, called_at in models:
        for name, holder in named_modules_of(model):
            key = id(getattr(holder, "__dict__", {}).get("_parameters", {}).get("weight"))
            if key not in tables:
                continue
            assigned = re.compile(rf"\b{re.escape(name)}\b[\"']?\]?\s*[:=].*{_BUILT}")
            named = lines_with(is_user_file, assigned) if name else []
            lines = named if len(named) == 1 else any_of_them
            found[key] = of_line(*lines[0]) if len(lines) == 1 else called_at
    return found


def _nodes_above(roots: list[Any], at_most: int) -> list[Any] | None:
    """Returns the nodes of a graph but its leaves; None where there are more."""
    known, waiting = set(roots), list(roots)
    for node in waiting:
        for found, _ in node.next_functions:
            if found is not None and found not in known and not _is_leaf(found):
                known.add(found)
                waiting.append(found)
        if len(waiting) > at_most:
            return None
    return waiting


def _is_leaf(node: Any) -> bool:
    return type(node).__name__ == _LEAF


def _table_of(node: Any) -> Any:
    """Returns the large parameter that a node gives a whole gradient; None if it is none.

    Nor where torch cannot do so for rows alone.
    """
    [(leaf, _), *_] = node.next_functions or [(None, 0)]
    if leaf is None or not _is_leaf(leaf) or getattr(node, "_saved_sparse", True):
        return None
    if getattr(node, "_saved_scale_grad_by_freq", True):
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


def _changes_some(optimizer: Any, weight: Any) -> bool:
    """Whether an optimizer leaves rows without a gradient as they are, by its settings."""
    cls = type(optimizer)
    if cls.__qualname__ not in _CHANGES_SOME or not cls.__module__.startswith("torch.optim."):
        return False
    own = [one for one in optimizer.param_groups if any(weight is x for x in one["params"])]
    return not any(group.get(name) for group in own for name in _CHANGES_ALL)


def numbers_in(optimizers: Iterable[Any]) -> int:
    """Returns how many numbers optimizers change in a step."""
    return sum(one.numel() for optimizer in optimizers for one in parameters_in(optimizer).values())
