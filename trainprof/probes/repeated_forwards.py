"""Calls of a model without gradients, for a batch that it has been called for with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trainprof.probes.calls_of_line import LineCalls
from trainprof.probes.session import ModuleCall

_MOST_PLACES: Final = 64
_MOST_MODELS: Final = 8
_MOST_ASKED: Final = 256
# So many calls of a line told, nearly all of which were for such a batch.
_ENOUGH_CALLS: Final = 4
_NEARLY_ALL: Final = 0.9
# Of a tensor: where it keeps its numbers, which of them, and how often it has been written.
_Identity: TypeAlias = tuple[int, int, tuple[int, ...], int]


@dataclass(slots=True)
class Given:
    """What a call was given.

    Attributes:
        storages: Weakly, so that no other gets their place.
        identities: Of its tensors.
        others: The rest of it, with its names: numbers, words, switches.
    """

    storages: list[Any]
    identities: list[_Identity]
    others: tuple[Any, ...] = ()

    def is_same_as(self, other: Given) -> bool:
        """Whether another call was given the very same, which still is there."""
        is_alike = self.identities == other.identities and self.others == other.others
        return is_alike and not any(storage.expired() for storage in other.storages)


@dataclass(slots=True)
class _Learned:
    """The last call of a module with gradients.

    Attributes:
        given: What it was given.
        passes: Of backward, before it.
        is_all: As the call before it: all data comes at once, so that no other is evaluated.
    """

    given: Given
    passes: int
    is_all: bool


@dataclass(slots=True)
class _Place(LineCalls):
    """Those without gradients.

    Attributes:
        repeats: Of them, for a batch that the module had been called for with gradients.
    """

    repeats: int = 0


class RepeatedForwards:
    """Is told of calls, and counts by their lines those that repeat what was computed already."""

    def __init__(self, given: Callable[[ModuleCall], Given | None]) -> None:
        """Begins with none.

        Args:
            given: Returns what a call was given; None where that is not known.
        """
        self._given = given
        self._places: dict[tuple[int, str], _Place] = {}
        # By id: modules that have been called without gradients. Of others nothing need be known.
        self._asked: set[int] = set()
        # By id of the module: what its last call with gradients was given.
        self._learned: dict[int, _Learned] = {}

    def open(self) -> None:
        """Begins a window: what came before it is not known."""
        self._learned.clear()
        for place in self._places.values():
            place.open()

    def learns(self, call: ModuleCall, passes: int) -> None:
        """Takes note of a call with gradients, after so many passes of backward."""
        key = id(call.module)
        if key not in self._asked:
            return
        given = self._given(call)
        before = self._learned.get(key)
        if given is not None and (before is not None or len(self._learned) < _MOST_MODELS):
            is_all = before is not None and given.is_same_as(before.given)
            self._learned[key] = _Learned(given, passes, is_all)

    def meet(self, call: ModuleCall, passes: int) -> None:
        """Takes note of a call without gradients, after so many passes of backward."""
        if len(self._asked) < _MOST_ASKED:
            self._asked.add(id(call.module))
        key = call.site, type(call.module).__qualname__
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES or id(call.module) not in self._learned:
                return
            place = self._places[key] = _Place()
        place.count(call, passes)
        learned = self._learned.get(id(call.module))
        # What is called ahead of backward may be what the loss is made of.
        if learned is None or learned.is_all or passes <= learned.passes:
            return
        given = self._given(call)
        if given is not None and given.identities:
            place.repeats += given.is_same_as(learned.given)

    def told(self, passes: int, per_watched: float) -> list[dict[str, Any]]:
        """Returns the lines whose calls repeat what was computed.

        Args:
            passes: Of backward, while they were watched.
            per_watched: So many steps stand for one that was watched.
        """
        return [
            {
                "site": site,
                "class": name,
                "calls": place.repeats,
                "seconds": place.ns_in_all() * per_watched / 1e9,
            }
            for (site, name), place in self._places.items()
            if place.repeats >= max(_ENOUGH_CALLS, _NEARLY_ALL * place.calls)
            and place.come_often(passes)
        ]
