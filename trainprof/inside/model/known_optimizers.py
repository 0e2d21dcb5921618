"""The optimizers of a script that live."""

from __future__ import annotations

import weakref
from typing import Any

from trainprof.inside.session import Session


class KnownOptimizers:
    """Knows each from when it is given parameters on; keeps none alive."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, weakref.ref[Any]] = {}

    def note(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key not in self._known:
            self._known[key] = weakref.ref(optimizer)
            self._session.keep_track(optimizer, self._known, key)

    def alive(self) -> list[Any]:
        return [found for one in list(self._known.values()) if (found := one()) is not None]


def parameters_in(optimizer: Any) -> dict[int, Any]:
    """Returns what an optimizer has now, by id."""
    groups = getattr(optimizer, "param_groups", ())
    return {id(parameter): parameter for group in groups for parameter in group["params"]}
