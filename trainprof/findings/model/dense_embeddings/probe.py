"""Embedding tables with a dense gradient for the few rows that a batch looks up."""

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
    held_in,
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

# Of a window; the first steps of new optimizers open others.
_STEPS, _MOST_WINDOWS = 16, 3
# A smaller table costs nothing to speak of.
_LARGE_NUMBERS: Final = 100_000
# Without these, these change only rows that have a gradient.
_CHANGES_ALL, _CHANGES_SOME = ("momentum", "weight_decay"), ("SGD", "Adagrad")
# A line that computes with a table's weight, of which then all has a gradient; and one that builds.
_USED: Final = r"^(?!.*(?:init|\w_\(|\bdata\b|\.requires_grad|\.shape|\.size)).*\b{}\.weight\b"
_BUILT: Final = r"\b{}\b[\"']?\]?\s*[:=].*\bEmbedding(?:\.from_pretrained)?\("


@dataclass(frozen=True, slots=True)
class EmbeddingTable(Note):
    """A table that gets a whole gradient.

    Attributes:
        rows, numbers: Of the table.
        indices: That its model is given in a step: no more rows are looked up.
        site: The line that builds it, else that calls its model.
        optimizer: The class of the optimizer that has it.
        is_plain: That leaves rows without a gradient as they are.
    """

    rows: int = 0
    numbers: int = 0
    indices: int = 0
    site: int = 0
    optimizer: str = ""
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingTablesNote(Note):
    """Tables of the models that train, and how many numbers their optimizers change in a step."""

    KEY: ClassVar[str] = "embedding_tables"

    tables: tuple[EmbeddingTable, ...] = ()
    numbers: int = 0


class EmbeddingTablesProbe:
    """Counts the integers in the inputs of models with such tables, over a few updates."""

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
        # By id: models with the line that called each; what they were given; updates.
        self._models: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._given, self._updates = Counter[int](), Counter[int]()

    def _meet(self, call: ModuleCall) -> None:
        if self._torch.is_grad_enabled():
            with self._plain.unseen():
                whole = (x for _, x in held_in(call.inputs) if self._plain.is_whole(x))
                self._given[id(call.module)] += sum(x.numel() for x in whole)
            self._models[id(call.module)] = weakref.ref(call.module), call.site

    def _has_stepped(self, optimizer: Any) -> None:
        self._updates[id(optimizer)] += bool(self._models)
        if self._updates.total() < _STEPS:
            return
        began_ns, alive = self._session.now(), self._optimizers.alive()
        owned = [(x, parameters_in(x)) for x in alive if self._updates[id(x)]]
        with self._plain.unseen():
            tables = [table for key in self._models for table in self._tables(key, owned)]
            numbers = sum(p.numel() for _, parameters in owned for p in parameters.values())
        if reads_gradients(self._session.sites.is_user_file):  # sparse ones do not take all
            tables = []
        self._session.note(EmbeddingTablesNote(tuple(tables), numbers))
        self._stop()
        self._session.count_inspection(began_ns)

    def _tables(self, key: int, owned: list[tuple[Any, dict[int, Any]]]) -> list[EmbeddingTable]:
        """Returns the records of a model's tables that nothing else of it, or of a text, uses."""
        (model, site), sites, tables = (
            self._models[key],
            self._session.sites,
            list[EmbeddingTable](),
        )
        alive = model()
        holders = [*named_modules_of(alive)] if alive is not None else []
        its: list[dict[str, Any]] = [
            module.__dict__.get("_parameters", {}) for _, module in holders
        ]
        uses = Counter(id(weight) for those in its for weight in those.values())
        for (name, holder), those in zip(holders, its, strict=True):
            weight: Any = those.get("weight")
            is_table = type(holder) is self._torch.nn.Embedding and self._plain.is_plain(weight)
            if not is_table or uses[id(weight)] != 1 or weight.numel() < _LARGE_NUMBERS:
                continue
            used, built = (
                lines_with(sites.is_user_file, re.compile(how.format(re.escape(name))))
                for how in (_USED, _BUILT)
            )
            if used or holder.sparse or holder.scale_grad_by_freq or holder.max_norm is not None:
                continue
            tables += [
                EmbeddingTable(
                    rows=weight.shape[0],
                    numbers=weight.numel(),
                    indices=self._given[key] // self._updates[id(optimizer)],
                    site=sites.site_at(*built[0]) if len(built) == 1 else site,
                    optimizer=type(optimizer).__qualname__,
                    is_plain=_changes_some(optimizer, weight),
                )
                for optimizer, parameters in owned
                if id(weight) in parameters and self._given[key]
            ]
        return tables


def _changes_some(optimizer: Any, weight: Any) -> bool:
    """Whether an optimizer leaves rows without a gradient as they are, by its settings."""
    if type(optimizer).__qualname__ not in _CHANGES_SOME:
        return False
    own = [g for g in optimizer.param_groups if any(weight is x for x in g["params"])]
    return not any(group.get(name) for group in own for name in _CHANGES_ALL)
