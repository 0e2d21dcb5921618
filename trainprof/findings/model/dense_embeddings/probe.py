"""Finds embedding tables with a dense gradient although a batch uses few rows."""

from __future__ import annotations

import os
import re
import weakref
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

from trainprof.inside.model.parameters import (
    KnownOptimizers,
    named_modules_of,
    parameters_in,
    reads_gradients,
)
from trainprof.inside.patching.function_modes import PlainTensors
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.patching.user_texts import lines_with
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.notes import Note

# Steps of a window, and the most windows; the first step of a new optimizer opens one.
_STEPS, _MOST_WINDOWS = 16, 3
# Smaller tables cost almost nothing.
_LARGE_NUMBERS: Final = 100_000
# Optimizers that change only rows with a gradient, without these settings.
_CHANGES_ALL, _CHANGES_SOME = ("momentum", "weight_decay"), ("SGD", "Adagrad")
# First columns of a gradient that are read: a row that was used has a nonzero number in them.
_COLUMNS: Final = 4
# A line that builds a table.
_BUILT: Final = r"\b{}\b[\"']?\]?\s*[:=].*\bEmbedding(?:\.from_pretrained)?\("


@dataclass(frozen=True, slots=True)
class EmbeddingTable(Note):
    """A table with a dense gradient.

    Attributes:
        rows, numbers: Rows and elements of the table.
        indices: Rows with a nonzero gradient at an update: those used, or all if other code
            computes with the table.
        site: Site id of the line that builds it, else that calls its model.
        optimizer: Class of its optimizer.
        is_plain: The optimizer leaves rows without a gradient unchanged.
    """

    rows: int = 0
    numbers: int = 0
    indices: int = 0
    site: int = 0
    optimizer: str = ""
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingTablesNote(Note):
    """Tables of the trained models, and the numbers that their optimizers change in a step."""

    KEY: ClassVar[str] = "embedding_tables"

    tables: tuple[EmbeddingTable, ...] = ()
    numbers: int = 0


class EmbeddingTablesProbe:
    """Counts the rows of such tables with a gradient, once after a few updates."""

    name = "embedding_tables"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._plain = torch, session, PlainTensors(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._call, self._step = patcher.guarded(self._meet), patcher.guarded(self._has_stepped)
        self._windows = 0
        self._stop()
        session.on_parameters.subscribe(patcher.guarded(self._optimizers.note))
        session.on_first_step.subscribe(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        self._stop()
        if self._windows < _MOST_WINDOWS and not self._plain.has_own_parameters():
            self._windows += 1
            self._session.on_step.subscribe(self._step)
            self._session.on_module_call.subscribe(self._call)

    def _stop(self) -> None:
        self._session.on_step.unsubscribe(self._step)
        self._session.on_module_call.unsubscribe(self._call)
        # Models with the line that called each, and updates by optimizer; both by id.
        self._models: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._updates = Counter[int]()

    def _meet(self, call: ModuleCall) -> None:
        if self._torch.is_grad_enabled():
            self._models[id(call.module)] = weakref.ref(call.module), call.site

    def _has_stepped(self, optimizer: Any) -> None:
        self._updates[id(optimizer)] += bool(self._models)
        if self._updates.total() < _STEPS:
            return
        began_ns, alive = self._session.now(), self._optimizers.alive()
        owned = [(x, parameters_in(x)) for x in alive if self._updates[id(x)]]
        with self._plain.unseen():
            tables: dict[int, EmbeddingTable] = {}  # by the weight's id: models may share one
            for model, site in self._models.values():
                tables |= self._tables(model(), site, owned)
            numbers = sum(p.numel() for _, parameters in owned for p in parameters.values())
        if reads_gradients(self._session.sites.is_user_file):  # may fail for sparse ones
            tables = {}
        self._session.note(EmbeddingTablesNote(tuple(tables.values()), numbers))
        self._stop()
        self._session.count_inspection(began_ns)

    def _tables(
        self, model: Any, site: int, owned: list[tuple[Any, dict[int, Any]]]
    ) -> dict[int, EmbeddingTable]:
        """Returns the tables of a model, called at `site`, by the id of their weight."""
        sites, tables = self._session.sites, dict[int, EmbeddingTable]()
        for name, holder in named_modules_of(model) if model is not None else ():
            weight: Any = holder.__dict__.get("_parameters", {}).get("weight")
            is_table = type(holder) is self._torch.nn.Embedding and self._plain.is_plain(weight)
            if not is_table or weight.numel() < _LARGE_NUMBERS:
                continue
            rows = _rows_with_gradient(weight)
            if rows is None or holder.scale_grad_by_freq or holder.max_norm is not None:
                continue
            how = re.compile(_BUILT.format(re.escape(name)))
            built = lines_with(sites.is_user_file, how)
            tables |= {
                id(weight): EmbeddingTable(
                    rows=weight.shape[0],
                    numbers=weight.numel(),
                    indices=rows,
                    site=sites.site_at(*built[0]) if len(built) == 1 else site,
                    optimizer=type(optimizer).__qualname__,
                    is_plain=_changes_some(optimizer, weight),
                )
                for optimizer, parameters in owned
                if id(weight) in parameters
            }
        return tables


def _rows_with_gradient(weight: Any) -> int | None:
    """Returns the rows with a gradient, None without a dense gradient in host memory."""
    gradient = weight.grad
    if gradient is None or gradient.is_sparse or gradient.device.type != "cpu":
        return None
    return int(gradient[:, :_COLUMNS].ne(0).any(1).sum())


def _changes_some(optimizer: Any, weight: Any) -> bool:
    """Returns whether an optimizer leaves rows without a gradient unchanged."""
    if type(optimizer).__qualname__ not in _CHANGES_SOME:
        return False
    own = [g for g in optimizer.param_groups if any(weight is x for x in g["params"])]
    return not any(group.get(name) for group in own for name in _CHANGES_ALL)
