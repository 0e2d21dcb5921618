"""What training changes between passes in what batches are made by: workers may not see it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.probes.call_site import CallSites, KeepTrack
from trainprof.probes.kept_value import kept
from trainprof.probes.pass_parts import Part, PassParts
from trainprof.probes.worker_needs import attributes_of
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic

# What is kept of a dataset's attributes, by name.
Marks = dict[str, Any]

# By id: the script's classes may have an `==` of their own.
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))
_IN_ORDER: Final = frozenset(map(id, (list, tuple)))
_COUNTED: Final = frozenset(map(id, (dict, set)))
# Of what a list holds.
_PIECES: Final = 8
# Of each other.
_MAX_SUBSETS: Final = 8
# Of one dataset, those that were used last.
_MAX_LOADERS: Final = 16


@dataclass(slots=True)
class _Watched:
    """What the attributes of a dataset, or of a part of what makes batches, were, by loader.

    Attributes:
        before: What the next pass of each is compared with, as it begins.
        making: As a pass began whose samples this process makes: they may change the dataset, too.
    """

    before: dict[int, Marks] = field(default_factory=dict)
    making: dict[int, Marks] = field(default_factory=dict)


class _Reference:
    """A reference to what may be gone, compared as it is: `==` would be that of the objects."""

    __slots__ = ("_of",)

    def __init__(self, of: weakref.ref[Any]) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        # Of one object there is one, as long as anybody has it.
        return type(other) is _Reference and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


@dataclass(frozen=True, slots=True)
class Making:
    """What a pass makes batches by.

    Attributes:
        dataset, collate_fn: Of the loader.
        worker_init_fn: Likewise; None without workers.
        has_workers: They have copies of all of it.
    """

    dataset: Any
    collate_fn: Any
    worker_init_fn: Any
    has_workers: bool


class ChangedDatasets:
    """Compares what a pass of a loader makes batches by, as it begins, with what it was before.

    Those are a dataset's attributes, what the functions read that the loader is given, and the
    user's objects that either holds. Before is as the last pass began, where workers change copies
    of their own, else as it ended, for the making of samples may change it as well. Numbers and
    words are compared, and of all else which object it is, and of lists and the like how long, with
    some of what is in them. Nothing of the script's is kept alive but those numbers and words, and
    of a long text some pieces.
    """

    def __init__(self, log: EventLog, keep_track: KeepTrack, sites: CallSites) -> None:
        self._log = log
        self._keep_track = keep_track
        self._parts = PassParts(sites)
        # By id; one that is gone is forgotten.
        self._watched: dict[int, _Watched] = {}
        self._told: set[tuple[int, str]] = set()

    def pass_begins(self, loader: int, making: Making) -> None:
        for part in self._parts_of(making):
            watched = self._watched_of(part)
            if watched is None:
                continue
            now = _marks(part)
            for name in _differing(watched.before.pop(loader, {}), now):
                self._tell(loader, f"{part.name}.{name}".lstrip("."))
            _put(watched.before if making.has_workers else watched.making, loader, now)

    def pass_ended(self, loader: int, making: Making) -> None:
        if making.has_workers:
            return
        for part in self._parts_of(making):
            watched = self._watched.get(id(part.thing))
            if watched is None:
                continue
            began, now = watched.making.pop(loader, {}), _marks(part)
            for others in list(watched.before.values()):
                _take_over(others, began, now)
            _put(watched.before, loader, now)

    def _parts_of(self, making: Making) -> Iterator[Part]:
        """Yields what batches are made by, each thing once: of a dataset all that it has."""
        seen: set[int] = set()
        for part in self._all_parts(making):
            if id(part.thing) not in seen:
                seen.add(id(part.thing))
                yield part

    def _all_parts(self, making: Making) -> Iterator[Part]:
        for one in _layers(making.dataset):
            yield Part("", one, attributes_of(one))
        yield from self._parts.below_dataset(whole_of(making.dataset))
        for name in ("collate_fn", "worker_init_fn"):
            called = getattr(making, name)
            if called is not None:
                yield from self._parts.of_function(name, called)

    def _watched_of(self, part: Part) -> _Watched | None:
        """Returns what is known of a part; None where nothing would tell when it is gone."""
        key = id(part.thing)
        watched = self._watched.get(key)
        if watched is None and part.values:
            watched = self._watched[key] = _Watched()
            if not self._keep_track(part.thing, self._watched, key):
                del self._watched[key]
                return None
        return watched

    def _tell(self, loader: int, name: str) -> None:
        if (loader, name) not in self._told:
            self._told.add((loader, name))
            changed = {"loader": loader, "attribute": name}
            self._log.note(Topic.ENVIRONMENT, {"changed_dataset": changed})


def whole_of(dataset: Any) -> Any:
    """Returns what torch's Subset is of; another dataset as it is."""
    *_, whole = _layers(dataset)
    return whole


def _layers(dataset: Any) -> Iterator[Any]:
    """Yields a dataset and, where that is torch's Subset, what it is of."""
    subset = getattr(sys.modules.get("torch.utils.data"), "Subset", None)
    yield dataset
    for _ in range(_MAX_SUBSETS):
        if type(dataset) is not subset:
            return
        dataset = getattr(dataset, "dataset", None)
        yield dataset


def _put(table: dict[int, Marks], loader: int, marks: Marks) -> None:
    table.pop(loader, None)
    table[loader] = marks
    for oldest in list(table)[:-_MAX_LOADERS]:
        table.pop(oldest, None)


def _differing(before: Marks, now: Marks) -> list[str]:
    return [
        name
        for name, mark in now.items()
        if (was := before.get(name, mark)) is not mark and was != mark
    ]


def _take_over(others: Marks, began: Marks, now: Marks) -> None:
    """Has other loaders' marks follow what the making of samples changed."""
    for name in _differing(began, now):
        if others.pop(name, None) == began[name]:
            others[name] = now[name]


def _marks(part: Part) -> Marks:
    # What was None is often worked out at its first use.
    held = [(name, value) for name, value in part.values if value is not None]
    return {name: mark(value) for name, value in held}


def mark(value: Any) -> Any:
    """Returns what tells a value from what it was before, and keeps nothing alive."""
    kind = id(type(value))
    if kind in _PLAIN:
        return kept(value)
    if kind in _IN_ORDER:
        return _mark_of_items(value)
    return kind, _which(value), len(value) if kind in _COUNTED else None


def _mark_of_items(value: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what a list or tuple is told by; a short one of plain values by those alone."""
    length = len(value)
    some = value[:: max(length // _PIECES, 1)]
    items = [kept(one) if id(type(one)) in _PLAIN else id(one) for one in some]
    is_all = len(some) == length and all(id(type(one)) in _PLAIN for one in some)
    return id(type(value)), None if is_all else id(value), length, *items


def _which(value: Any) -> Any:
    """Returns what tells an object from all others, those that are made once it is gone as well.

    Of what cannot be watched, as a dict, the id: another may have that then. Of tensors as well:
    torch swaps none that is watched (`torch.utils.swap_tensors`), and where their numbers lie is
    another place once workers have been given them.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and issubclass(type(value), tensor):
        return id(value)
    try:
        return _Reference(weakref.ref(value))
    except TypeError:
        return id(value)
