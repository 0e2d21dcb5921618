"""Counts micro-batches of one update after each of which DDP averages gradients."""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar, Final

from trainprof.inside.model.parameters import parameters_of
from trainprof.inside.patching.function_modes import PlainTensors
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.notes import Note

_DDP: Final = "torch.nn.parallel.distributed"
_MOST_PLACES: Final = 16
# Parameters of a model whose versions are read.
_MOST_PARAMETERS: Final = 8
# The first updates are slower.
_SKIPPED_UPDATES: Final = 2
_WATCHED_UPDATES: Final = 8
_ENOUGH_UPDATES: Final = 4


@dataclass(frozen=True, slots=True)
class GradientSyncsNote(Note):
    """Calls of a DistributedDataParallel model from one line.

    Attributes:
        site: Site id of the user's line.
        batches: Mean number of batches per update; gradients are averaged after each.
    """

    KEY: ClassVar[str] = "gradient_syncs"

    site: int = 0
    batches: float = 0.0


@dataclass(slots=True)
class _Place:
    """The calls of a model from one line.

    Attributes:
        updates: Updates that were followed by a call.
        added: Calls whose gradients were added to those of the call before.
        version: Sum of the parameters' version counters at the last call.
        met_at: Number of backward passes before it.
        written: Sum of the gradients' version counters at it, None without gradients.
        set_back: Writes to gradients across the last update: one more than by a backward pass if
            they were zeroed in place.
        is_out: Gradients are averaged once per update, or zeroed between micro-batches.
    """

    updates: int = 0
    added: int = 0
    version: int = -1
    met_at: int = -1
    written: int | None = None
    set_back: int | None = None
    is_out: bool = False


class GradientSyncsProbe:
    """Watches calls of DistributedDataParallel models over a few updates."""

    name = "gradient_syncs"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._plain = PlainTensors(torch, session)
        self._process = os.getpid()
        # By line and class name.
        self._places: dict[tuple[int, str], _Place] = {}
        self._thread = self._updates = self._passes = 0
        self._backward = patcher.guarded(self._begins)
        self._call, self._step = patcher.guarded(self._meet), patcher.guarded(self._has_stepped)
        session.on_first_step.subscribe(patcher.guarded(self._first_step))
        session.on_end.subscribe(patcher.guarded(self._end))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _first_step(self, _: Any) -> None:
        if self._thread == 0 and _DDP in sys.modules:
            self._thread = get_ident()
            self._session.on_step.subscribe(self._step)

    def _has_stepped(self, _: Any) -> None:
        if get_ident() != self._thread:
            return
        self._updates += 1
        if self._updates == _SKIPPED_UPDATES:
            self._session.on_module_call.subscribe(self._call)
            self._session.on_backward.subscribe(self._backward)
        elif self._updates == _SKIPPED_UPDATES + _WATCHED_UPDATES:
            self._end()

    def _stop(self) -> None:
        self._session.on_step.unsubscribe(self._step)
        self._session.on_backward.unsubscribe(self._backward)
        self._session.on_module_call.unsubscribe(self._call)
        self._places.clear()

    def _end(self) -> None:
        notes = [
            GradientSyncsNote(site, 1 + place.added / place.updates)
            for (site, _), place in self._places.items()
            if not place.is_out and place.updates >= _ENOUGH_UPDATES and place.added > 0
        ]
        if notes and os.getpid() == self._process:
            self._session.note(notes)
        self._stop()

    def _begins(self, *_: Any) -> None:
        self._passes += get_ident() == self._thread

    def _meet(self, call: ModuleCall) -> None:
        if get_ident() != self._thread or not self._torch.is_grad_enabled():
            return
        parallel = getattr(sys.modules.get(_DDP), "DistributedDataParallel", None)
        if not isinstance(parallel, type) or not issubclass(type(call.module), parallel):
            return
        key = call.site, type(call.module).__qualname__
        if key not in self._places and len(self._places) < _MOST_PLACES:
            self._places[key] = _Place()
        place = self._places.get(key)
        if place is not None and not place.is_out:
            with self._plain.unseen():
                self._count(place, call.module)

    def _count(self, place: _Place, module: Any) -> None:
        learning = (parameter for parameter in parameters_of(module) if parameter.requires_grad)
        some = list(islice(learning, _MOST_PARAMETERS))
        is_averaged = module.__dict__.get("require_backward_grad_sync") is True
        if not some or not is_averaged or module.__dict__.get("_comm_hooks"):
            place.is_out = True
            return
        before, place.version = place.version, sum(parameter._version for parameter in some)
        passed, place.met_at = self._passes > place.met_at, self._passes
        gradients = [parameter.grad for parameter in some if parameter.grad is not None]
        last, place.written = place.written, sum(x._version for x in gradients) or None
        since = place.written - last if last is not None and place.written is not None else None
        if before != place.version:
            place.updates, place.set_back = place.updates + 1, since
        elif not passed or not gradients:
            place.is_out = True
        elif since is not None and place.set_back is not None and since >= place.set_back:
            place.is_out = True  # zeroed each time, or never
        else:
            place.added += 1
