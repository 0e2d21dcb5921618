"""Micro-batches of one update, after each of which ranks average gradients (DDP)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from trainprof.probes.graph_look import Autograd
from trainprof.probes.lines_of_modules import Key
from trainprof.probes.module_parts import parameters_of
from trainprof.probes.session import ModuleCall

_DDP: Final = "torch.nn.parallel.distributed"
_MOST_PLACES: Final = 16
# Parameters of a model that are looked at.
_MOST_PARAMETERS: Final = 8
_ENOUGH_UPDATES: Final = 4


@dataclass(slots=True)
class _Place:
    """The calls of a model from one line, while it was watched.

    Attributes:
        updates: After which a call came; a window begins with one.
        added: Calls whose gradients came on top of those of the call before.
        version: How often parameters had been written by the last call; -1 before the first one of
            a window.
        met_at: The last pass of backward before that.
        is_out: It is something else: gradients are averaged once, or taken away in between.
    """

    updates: int = 0
    added: int = 0
    version: int = -1
    met_at: int = -1
    is_out: bool = False


class GradientSyncs:
    """Is told of calls with gradients; of models in DistributedDataParallel it tells."""

    def __init__(self, autograd: Autograd) -> None:
        self._autograd = autograd
        self._places: dict[Key, _Place] = {}

    def open(self) -> None:
        """Begins a window: what came before it is not known."""
        for place in self._places.values():
            place.version = -1

    def meet(self, call: ModuleCall, key: Key, passes: int) -> None:
        """Takes note of a call, after so many passes of backward."""
        parallel = getattr(sys.modules.get(_DDP), "DistributedDataParallel", None)
        if not isinstance(parallel, type) or not issubclass(type(call.module), parallel):
            return
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                return
            place = self._places[key] = _Place()
        if not place.is_out:
            with self._autograd.unseen():
                self._count(place, call.module, passes)

    def _count(self, place: _Place, module: Any, passes: int) -> None:
        held = module.__dict__
        learning = (one for one in parameters_of(module) if one.requires_grad)
        some = list(islice(learning, _MOST_PARAMETERS))
        is_averaged = held.get("require_backward_grad_sync") is True
        if not some or not is_averaged or held.get("_comm_hooks"):
            place.is_out = True
            return
        before, place.version = place.version, sum(one._version for one in some)
        passed, place.met_at = passes > place.met_at, passes
        if before != place.version:
            place.updates += 1
        elif passed and self._have_gradients(some):
            place.added += 1
        else:
            place.is_out = True

    def _have_gradients(self, parameters: list[Any]) -> bool:
        """Whether there are gradients that the next ones come on top of; no device is waited for.

        Where they are taken away after each pass, to be put together otherwise, each is needed.
        """
        gradients = [one.grad for one in parameters if one.grad is not None]
        if not gradients or any(one.device.type != "cpu" for one in gradients):
            return bool(gradients)
        return self._autograd.may_compute() and any(
            self._autograd.is_plain(one) and bool(self._autograd.numbers_of(one).total)
            for one in gradients
        )

    def told(self, passes: int, per_watched: float) -> list[dict[str, Any]]:
        """Returns the lines whose micro-batches are all averaged.

        Args:
            passes, per_watched: As others of these have it; not asked here.
        """
        return [
            {"site": site, "class": name, "batches": 1 + place.added / place.updates}
            for (site, name, _), place in self._places.items()
            if not place.is_out and place.updates >= _ENOUGH_UPDATES and place.added > 0
        ]
