"""Modules without parameters that training calls beside its model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from trainprof.probes.calls_of_line import LineCalls
from trainprof.probes.given_tensors import GivenTensors
from trainprof.probes.graph_look import Autograd
from trainprof.probes.lines_of_modules import Key
from trainprof.probes.module_parts import modules_of
from trainprof.probes.session import ModuleCall

# What they do, as it is told.
DATA: Final = "data"
METRIC: Final = "metric"
WATCHED: Final = "watched"

_MOST_PLACES: Final = 64
_MOST_MADE: Final = 32
# So many calls of a line told, nearly all of which were alike.
_ENOUGH_CALLS: Final = 4
_NEARLY_ALL: Final = 0.9
_METRICS: Final = ("torchmetrics",)
# Scripted and quantized.
_CONVERTED: Final = ("torch.jit", "torch.ao.", "torch.fx", "torch.export")
_LOADERS: Final = "torch.utils.data."
_MOST_FRAMES: Final = 200


@dataclass(slots=True)
class _Place(LineCalls):
    """Those of a line.

    Attributes:
        is_metric: By its class.
        has_buffers: It may keep something for later calls.
        state: Which buffers it had, and how often they had been written.
        as_data: Calls ahead of all models', of which one that is trained was given the result.
        as_look: Calls after backward that were given what a model that is trained had given.
        unseen: Calls ahead of the first model in a window: what was given before is not known.
        is_out: They are something else.
    """

    is_metric: bool
    has_buffers: bool
    state: tuple[Any, ...]
    as_data: int = 0
    as_look: int = 0
    unseen: int = 0
    is_out: bool = False

    @property
    def role(self) -> str | None:
        """What all its calls are for, where that is known."""
        if self.as_data >= _NEARLY_ALL * self.calls:
            return DATA
        if self.is_metric:
            return METRIC
        is_look = self.as_look >= max(_NEARLY_ALL * (self.calls - self.unseen), _ENOUGH_CALLS)
        return WATCHED if is_look and not self.has_buffers else None


@dataclass(slots=True)
class _Made:
    """What a call gave, ahead of all models'.

    Attributes:
        place: Of the call.
        storages: Of its tensors, weakly.
        above: What it was made of.
        is_used: A model was given it.
    """

    place: _Place
    storages: list[Any]
    above: list[_Made]
    is_used: bool = False


class SideModules:
    """Is told of all calls, and counts by their lines those of modules that learn nothing."""

    def __init__(self, autograd: Autograd, tensors: GivenTensors) -> None:
        self._autograd, self._tensors = autograd, tensors
        self._places: dict[Key, _Place] = {}
        self._begin_step(-1)
        # What models that are trained gave last, weakly; None before the first in a window.
        self._given: list[Any] | None = None

    def open(self) -> None:
        """Begins a window: what came before it is not known."""
        for place in self._places.values():
            place.open()
        self._begin_step(-1)
        self._given = None

    def _begin_step(self, passes: int) -> None:
        self._passes = passes
        self._made: list[_Made] = []
        # Since the last pass of backward no model was called.
        self._is_ahead = True

    def meet(self, call: ModuleCall, key: Key, passes: int, *, learns: bool) -> None:
        """Takes note of a call.

        Args:
            call: Of any module.
            key: Its line, its class, and whether it has parameters.
            passes: Of backward, before it.
            learns: It is of a model that is trained, with gradients.
        """
        if passes != self._passes:
            self._begin_step(passes)
        with self._autograd.unseen():
            if key[2]:
                self._meet_model(call, learns=learns)
            else:
                self._meet_without_parameters(call, key, passes)

    def _meet_model(self, call: ModuleCall, *, learns: bool) -> None:
        if learns and self._made:
            given = {storage.cdata for storage in self._tensors.given(call)}
            for made in self._made:
                if _is_among(made.storages, given):
                    _note_use(made)
        if learns:
            self._given = self._tensors.storages(self._tensors.all_in(call.output) or ())
        self._is_ahead = False

    def _meet_without_parameters(self, call: ModuleCall, key: Key, passes: int) -> None:
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                return
            state = _state_of(call.module)
            place = self._places[key] = _Place(_is_metric(call.module), bool(state), state)
            place.is_out = _hides_parameters(call.module) or _is_in_loader()
        if place.is_out:
            return
        place.count(call, passes)
        tensors = self._tensors.all_in(call.output)
        is_open = tensors is None or place.state != _state_of(call.module)
        # What has a graph is a part of the model.
        if (is_open and not place.is_metric) or any(
            one.requires_grad or one.device.type != "cpu" for one in tensors or ()
        ):
            place.is_out = True
        elif self._is_ahead:
            self._meet_ahead(place, call, tensors or ())

    def _meet_ahead(self, place: _Place, call: ModuleCall, tensors: Any) -> None:
        given = {storage.cdata for storage in self._tensors.given(call)}
        # A module's own result is not what it was given.
        storages = self._tensors.storages(tensors)
        above = [made for made in self._made if _is_among(made.storages, given)]
        if len(self._made) < _MOST_MADE:
            self._made.append(_Made(place, storages, above))
        place.unseen += self._given is None
        place.as_look += _is_among(self._given or [], given)

    def told(self, passes: int, per_watched: float) -> list[dict[str, Any]]:
        """Returns the lines whose part in training is known.

        Args:
            passes: Of backward, while they were watched.
            per_watched: So many steps stand for one that was watched.
        """
        return [
            {
                "site": site,
                "class": name,
                "role": place.role,
                "calls": place.calls,
                "seconds": place.ns_in_all() * per_watched / 1e9,
            }
            for (site, name, _), place in self._places.items()
            if not place.is_out
            and place.calls >= _ENOUGH_CALLS
            and place.role is not None
            and place.come_often(passes)
        ]


def _is_among(storages: list[Any], given: set[int]) -> bool:
    return any(storage.cdata in given and not storage.expired() for storage in storages)


def _note_use(made: _Made) -> None:
    """Notes that a model was given what a call made, and so what that was made of."""
    waiting = [made]
    while waiting:
        one = waiting.pop()
        if not one.is_used:
            one.is_used = True
            one.place.as_data += 1
            waiting.extend(one.above)


def _is_metric(module: Any) -> bool:
    packages = {cls.__module__.partition(".")[0] for cls in type(module).__mro__}
    return not packages.isdisjoint(_METRICS)


def _hides_parameters(module: Any) -> bool:
    """Whether it is made by torch out of a model, with weights that are no parameters."""
    classes = {cls for one in modules_of(module) for cls in type(one).__mro__}
    return any(cls.__module__.startswith(_CONVERTED) for cls in classes)


def _state_of(module: Any) -> tuple[Any, ...]:
    """Returns which buffers it has, and how often they have been written."""
    held = (getattr(one, "__dict__", {}).get("_buffers") for one in modules_of(module))
    buffers = (buffer for one in held if isinstance(one, dict) for buffer in one.values())
    return tuple((id(one), one._version) for one in buffers if one is not None)


def _is_in_loader() -> bool:
    """Whether a loader is at work that makes its batches in this process: it is no step's."""
    frame = sys._getframe()
    for _ in range(_MOST_FRAMES):
        above = frame.f_back
        if above is None:
            return False
        frame = above
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.startswith(_LOADERS):
            return True
    return False
