"""What training changes within a pass in a sampler of the user's: workers are ahead of that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from trainprof.probes.call_site import KeepTrack
from trainprof.probes.changed_datasets import mark
from trainprof.probes.sampling_facts import with_inner
from trainprof.probes.worker_needs import attributes_of
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic

# Times between two batches that are looked at, of a loader: each takes some 10 us. What is changed
# every few steps is changed among those.
_LOOKS: Final = 64
# Of a list, and bytes of an array, that are compared as a whole.
_MOST_ITEMS: Final = 4_096
_MOST_BYTES: Final = 65_536
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))


@dataclass(slots=True)
class _Watched:
    """A sampler as a batch was given: what it is at the next call the loop has changed.

    Attributes:
        loader: The id of whose it is.
        marks: By the names of attributes.
    """

    loader: int
    marks: dict[str, Any]


class LearningSamplers:
    """Compares the samplers of the user's as a batch is asked for with when the last was given.

    Whatever differs is not the sampler's own doing: that is asked only in between.
    """

    def __init__(
        self, log: EventLog, keep_track: KeepTrack, is_own: Callable[[type], bool]
    ) -> None:
        self._log = log
        self._keep_track = keep_track
        self._is_own = is_own
        # By an iterator's id.
        self.watched: dict[int, _Watched] = {}
        self._left: dict[int, int] = {}
        self._told: set[tuple[int, str]] = set()

    def begins(self, loader: int, iterator: Any) -> None:
        """Watches an iterator, which has given its first batch."""
        if self._left.setdefault(loader, _LOOKS) <= 0 or not self._samplers(iterator):
            return
        key = id(iterator)
        self.watched[key] = _Watched(loader, self._marks(iterator))
        if not self._keep_track(iterator, self.watched, key):
            del self.watched[key]

    def asked(self, iterator: Any) -> None:
        """Compares, as a further batch is asked for."""
        watched = self.watched[id(iterator)]
        for name, now in self._marks(iterator).items():
            if watched.marks.get(name, now) != now:
                self._tell(watched.loader, name)
        self._left[watched.loader] -= 1
        if self._left[watched.loader] <= 0:
            self.watched.pop(id(iterator), None)

    def given(self, iterator: Any) -> None:
        """Notes what its samplers are once that batch is there."""
        watched = self.watched.get(id(iterator))
        if watched is not None:
            watched.marks = self._marks(iterator)

    def _samplers(self, iterator: Any) -> list[Any]:
        drawn = with_inner(getattr(iterator, "_index_sampler", None))
        return [x for x in drawn if self._is_own(type(x))]

    def _marks(self, iterator: Any) -> dict[str, Any]:
        dataset = getattr(iterator, "_dataset", None)
        return {
            name: _mark(value)
            for sampler in self._samplers(iterator)
            for name, value in self._held(sampler, dataset)
        }

    def _held(self, sampler: Any, dataset: Any) -> Iterator[tuple[str, Any]]:
        """Yields what a sampler has, and what objects of the user's have that it holds."""
        for name, value in attributes_of(sampler):
            yield name, value
            if value is not dataset and self._is_own(type(value)):
                yield from ((f"{name}.{inner}", one) for inner, one in attributes_of(value))

    def _tell(self, loader: int, name: str) -> None:
        if (loader, name) not in self._told:
            self._told.add((loader, name))
            learning = {"loader": loader, "attribute": name}
            self._log.note(Topic.ENVIRONMENT, {"learning_sampler": learning})


def _mark(value: Any) -> Any:
    """Returns what a value is told by, with what is in it where that is little."""
    kind = type(value)
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        return id(value), _version(value)
    if kind is getattr(sys.modules.get("numpy"), "ndarray", None):
        is_little = value.nbytes <= _MOST_BYTES and value.dtype.kind in "biuf"
        return id(value), hash(value.tobytes()) if is_little else None
    if kind is dict or kind is list or kind is set:
        items = [*value.values()] if kind is dict else value
        if len(items) <= _MOST_ITEMS and all(id(type(x)) in _PLAIN for x in items):
            return id(value), hash(tuple(items))
    return mark(value)


def _version(tensor: Any) -> int | None:
    """Returns how often a tensor was changed in place; None of those that do not count that."""
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return None
