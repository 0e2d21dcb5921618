"""Attributes of datasets that training changes between epochs: persistent workers do not see it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from trainprof.inside.loading.worker_requirements import attributes_of
from trainprof.inside.patching.call_site import KeepTrack
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic

# What a dataset's attributes are compared by, by name.
Marks = dict[str, Any]
# Of a dataset: its marks in each loader's last epoch and whether the next may be compared; and the
# names that preparing samples changed in this process, of a cache say.
_Watched = tuple[dict[int, tuple[Marks, bool]], set[str]]
# By id: the script's classes may have an `==` of their own.
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))
_ITEMS, _MAX_SUBSETS, _MAX_LOADERS = 8, 8, 16


class ChangedDatasets:
    """Compares a dataset's attributes, as an epoch begins, with what they were before.

    So are numbers and words of the user's objects that it holds. Workers change copies: with them
    the last epoch's beginning counts, else its end. Numbers and words are compared, of a list its
    first items and length, of all else which object it is. Nothing of the script's is kept alive.
    """

    def __init__(self, log: EventLog, track: KeepTrack, is_own: Callable[[type], bool]) -> None:
        self._log, self._keep_track, self._is_own = log, track, is_own
        # By id; one that is gone is forgotten.
        self._watched: dict[int, _Watched] = {}
        self._noted: set[tuple[int, str]] = set()

    def epoch_begins(self, loader: int, dataset: Any, *, has_workers: bool) -> None:
        dataset = whole_of(dataset)
        if id(dataset) not in self._watched:
            self._watched[id(dataset)] = {}, set()
            if not self._keep_track(dataset, self._watched, id(dataset)):
                del self._watched[id(dataset)]
                return
        (last, own), now = self._watched[id(dataset)], self._marks(dataset)
        before, is_ready = last.pop(loader, ({}, False))
        for name in sorted(_differing(before, now) - own):
            if is_ready and (loader, name) not in self._noted:
                self._noted.add((loader, name))
                changed = {"loader": loader, "attribute": name}
                self._log.note(Topic.ENVIRONMENT, {"changed_dataset": changed})
        if len(last) >= _MAX_LOADERS:
            last.clear()
        last[loader] = now, has_workers

    def epoch_ended(self, loader: int, dataset: Any) -> None:
        dataset = whole_of(dataset)
        last, own = self._watched.get(id(dataset), ({}, set()))
        began, is_ready = last.get(loader, ({}, True))
        if not is_ready:
            now = self._marks(dataset)
            own |= _differing(began, now)
            last[loader] = now, True

    def _marks(self, dataset: Any) -> Marks:
        marks = {}
        for name, value in attributes_of(dataset):
            if value is not None:  # else it is often worked out at its first use
                marks[name] = _mark(value)
            if self._is_own(type(value)):
                held = [x for x in attributes_of(value) if id(type(x[1])) in _PLAIN]
                marks |= {f"{name}.{inner}": _mark(x) for inner, x in held}
        return marks


def whole_of(dataset: Any) -> Any:
    """Returns what torch's Subset is of; another dataset as it is."""
    subset = getattr(sys.modules.get("torch.utils.data"), "Subset", None)
    for _ in range(_MAX_SUBSETS):
        if type(dataset) is not subset:
            break
        dataset = getattr(dataset, "dataset", None)
    return dataset


def _differing(before: Marks, now: Marks) -> set[str]:
    return {name for name, mark in now.items() if before.get(name, mark) != mark}


def _mark(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return hash(value)
    if id(kind) in _PLAIN:
        return repr(value) if kind is float else value
    if kind is list or kind is tuple:
        items = [_mark(x) if id(type(x)) in _PLAIN else id(x) for x in value[:_ITEMS]]
        return len(value), *items
    return id(value), len(value) if kind is dict or kind is set else None
