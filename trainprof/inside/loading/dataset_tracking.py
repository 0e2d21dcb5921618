"""Identifies datasets, and detects what training changes in one: persistent workers miss that."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

from trainprof.inside.loading.worker_requirements import attributes_of
from trainprof.inside.patching.call_site import KeepTrack
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic

# Values by which a dataset's attributes are compared, by name.
Marks = dict[str, Any]
# Of a dataset: by loader its marks in the last epoch and whether to compare the next epoch; and the
# attributes that preparing samples changed in this process, such as a cache.
_Watched = tuple[dict[int, tuple[Marks, bool]], set[str]]
# By id: a metaclass of the script may define `==`.
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))
_ITEMS, _MAX_SUBSETS, _MAX_LOADERS = 8, 8, 16
# Fingerprints of one line that keep their numbers without a living dataset, because one may be
# recreated each epoch. A script that selects other rows for each task creates ever more.
MOST_FINGERPRINTS: Final = 64


class ChangedDatasets:
    """Compares a dataset's attributes at the start of an epoch with those in the last epoch.

    Numbers and strings of the user's objects in it are compared too; lists by their first items
    and length, other objects by identity. With workers, which change copies, it compares with the
    last epoch's start, else with its end. No object of the script is kept alive.
    """

    def __init__(self, log: EventLog, track: KeepTrack, is_own: Callable[[type], bool]) -> None:
        self._log, self._keep_track, self._is_own = log, track, is_own
        # By id; freed datasets are removed.
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
            if value is not None:  # else often computed at first use
                marks[name] = _mark(value)
            if self._is_own(type(value)):
                held = [x for x in attributes_of(value) if id(type(x[1])) in _PLAIN]
                marks |= {f"{name}.{inner}": _mark(x) for inner, x in held}
        return marks


def whole_of(dataset: Any) -> Any:
    """Returns the dataset in torch's Subset, or any other dataset itself."""
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


class LowestFree:
    """Finds the lowest free number, without a search until one was freed."""

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def take(self, line: int, taken: Collection[int]) -> int:
        """Returns the lowest number for a line that is not in `taken`."""
        highest = self._highest.get(line, 0)
        if len(taken) < highest:
            all_taken = set(taken)
            return next(number for number in itertools.count(1) if number not in all_taken)
        self._highest[line] = highest + 1
        return highest + 1


class DatasetNumbers:
    """Numbers datasets twice: per line, where numbers of freed datasets are reused, and per run.

    Copies of a Hugging Face dataset have one fingerprint and count as one dataset. A line's last
    fingerprints keep their numbers after their datasets are freed.
    """

    def __init__(self, keep_track: KeepTrack) -> None:
        self._keep_track = keep_track
        self._by_line: dict[int, dict[int | str, int]] = {}
        self._lowest = LowestFree()
        # By id of a living dataset; and by line the number at which dead ones are dropped.
        self._fingerprints: dict[int, int | str] = {}
        self._most: dict[int, int] = {}
        self._counter = itertools.count(1)
        self._of_run: dict[int | str, int] = {}
        # By loader (id, number) of a dataset without weak references.
        self._unwatched: dict[int, tuple[int, int]] = {}

    def line_number(self, site: int, dataset: Any) -> int | None:
        """Returns a number among the datasets that one line loads, None if unknown."""
        key = _key(dataset)
        numbers = self._by_line.setdefault(site, {})
        if type(key) is str and self._fingerprints.get(id(dataset)) != key:
            self._fingerprints[id(dataset)] = key
            self._keep_track(dataset, self._fingerprints, id(dataset))
        if key not in numbers:
            try:
                weakref.ref(dataset)
            except TypeError:  # such as a list: its id may be reused unnoticed
                return None
            if type(key) is str and len(numbers) >= self._most.get(site, MOST_FINGERPRINTS):
                self._forget_dead(site, numbers)
            numbers[key] = self._lowest.take(site, numbers.values())
            if type(key) is int:
                self._keep_track(dataset, numbers, key)
        return numbers[key]

    def _forget_dead(self, site: int, numbers: dict[int | str, int]) -> None:
        living = {*self._fingerprints.values()}
        for key in list(numbers):
            if type(key) is str and key not in living:
                del numbers[key]
        self._most[site] = max(MOST_FINGERPRINTS, 2 * len(numbers))

    def run_number(self, loader: int, dataset: Any) -> int:
        """Returns this dataset's number, unique in the run.

        Without weak references a dataset is another one if its id differs from the loader's last.
        """
        key = _key(dataset)
        number = self._of_run.get(key)
        if number is None:
            number = self._of_run[key] = next(self._counter)
            if type(key) is int and not self._keep_track(dataset, self._of_run, key):
                del self._of_run[key]
                if self._unwatched.get(loader, (None, 0))[0] != key:
                    self._unwatched[loader] = key, number
                return self._unwatched[loader][1]
        return number


def _key(dataset: Any) -> int | str:
    fingerprint = dict(attributes_of(dataset)).get("_fingerprint")
    return fingerprint if type(fingerprint) is str else id(dataset)
