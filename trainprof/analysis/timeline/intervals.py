"""Stretches of time, and the garbage collector's pauses of a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.record.schema import Kind

if TYPE_CHECKING:
    from trainprof.analysis.timeline.events import Events, Int64, Nesting


@dataclass(frozen=True, slots=True)
class Coverage:
    """Disjoint stretches in order, ns; `before_ns` is the length of all before each."""

    starts: Int64
    ends: Int64
    before_ns: Int64

    @classmethod
    def of(cls, spans: Int64, window: tuple[int, int]) -> Coverage:
        """Joins spans that overlap, shape (n, 2) in any order, cut to a window."""
        spans = np.clip(spans, *window)
        spans = spans[spans[:, 1] > spans[:, 0]]
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        if len(spans) == 0:
            nothing = np.empty(0, dtype=np.int64)
            return cls(nothing, nothing, nothing)
        reach = np.maximum.accumulate(spans[:, 1])
        begins = np.concatenate([[True], spans[1:, 0] > reach[:-1]])
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(spans) - 1)
        starts, ends = spans[begins, 0], reach[last]
        return cls(starts, ends, np.concatenate([[0], np.cumsum(ends - starts)[:-1]]))

    def spans(self) -> Int64:
        """Returns the stretches, shape (n, 2), ns."""
        return np.stack((self.starts, self.ends), axis=1)

    def total_ns(self) -> int:
        return int((self.ends - self.starts).sum())

    def until(self, times: Int64) -> Int64:
        """Returns the covered time before each time, ns."""
        if len(self.starts) == 0:
            return np.zeros_like(times)
        place = np.searchsorted(self.starts, times, side="right") - 1
        at = np.maximum(place, 0)
        inside = np.clip(times, self.starts[at], self.ends[at]) - self.starts[at]
        before: Int64 = np.where(place < 0, 0, self.before_ns[at] + inside)
        return before

    def inside_ns(self, starts: Int64, ends: Int64) -> Int64:
        """Returns the covered time in each span, ns."""
        return self.until(ends) - self.until(starts)


def own_inside_ns(covered: Coverage, events: Events, nesting: Nesting) -> Int64:
    """Returns the covered part of each event's own time, which no child covers."""
    whole = covered.inside_ns(events.start, events.end)
    own = whole.copy()
    is_child = nesting.parent >= 0
    np.subtract.at(own, nesting.parent[is_child], whole[is_child])
    clipped: Int64 = np.clip(own, 0, np.maximum(nesting.own_ns, 0))
    return clipped


EVER: Final = (0, int(np.iinfo(np.int64).max))


def collections_on(thread: int, events: Events) -> Coverage:
    """Returns when the garbage collector stopped a thread."""
    collections = events.where(events.is_kind(Kind.GC) & (events.thread == thread))
    return Coverage.of(np.stack((collections.start, collections.end), axis=1), EVER)


def paused_ns(calls: Events, events: Events) -> Int64:
    """Returns the pause of each call by collections on its thread, ns."""
    paused = np.zeros(len(calls), dtype=np.int64)
    for thread in np.unique(events.thread[events.is_kind(Kind.GC)]).tolist():
        mine = calls.thread == thread
        pauses = collections_on(thread, events)
        paused[mine] = pauses.inside_ns(calls.start[mine], calls.end[mine])
    return paused
