"""Numbers that tell apart what functions the loaders of one line put their samples together by."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import Any, Final

from trainprof.probes.kept_value import kept
from trainprof.probes.static_lookup import closed_over
from trainprof.probes.worker_needs import attributes_of

# Of one line: from there on all others have the last number.
_MOST_NUMBERS: Final = 1_024
# Of a partial of a method of an object.
_MAX_DEPTH: Final = 3
_MAX_GIVEN: Final = 16
_PLAIN: Final = frozenset(map(id, (bool, int, float, str, type(None))))


class CollateNumbers:
    """Numbers those that differ: one made anew of the same code and values is the same."""

    def __init__(self) -> None:
        self._known: dict[int, dict[Any, int]] = {}

    def of_run(self, loader: int, collate: Any) -> int:
        """Returns a loader's number for a function.

        Args:
            loader: Its id: those that are built anew by one line, alike, have the same.
            collate: As it has it.
        """
        known = self._known.setdefault(loader, {})
        if len(known) >= _MOST_NUMBERS:
            return _MOST_NUMBERS
        return known.setdefault(_likeness(collate, _MAX_DEPTH), len(known) + 1)


def _likeness(thing: Any, depth: int) -> Any:
    """Returns what tells two things apart that make batches: what does not is not kept alive."""
    kind = type(thing)
    if id(kind) in _PLAIN:
        return id(kind), kept(thing)
    if depth == 0:
        return id(thing)
    if kind is functools.partial:
        given = (thing.func, *thing.args, *thing.keywords.values())
    elif kind is MethodType:
        given = (thing.__func__, thing.__self__)
    elif kind is FunctionType:
        held = dict(closed_over(thing))
        inner = [held.get(name) for name in thing.__code__.co_freevars]
        given = (*inner, *(thing.__defaults__ or ()))
        return id(thing.__code__), _all(given, depth)
    else:
        given = tuple(value for _, value in attributes_of(thing))
        if not given:
            return id(thing)
    return id(kind), _all(given, depth)


def _all(given: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    return tuple(_likeness(one, depth - 1) for one in given[:_MAX_GIVEN])
