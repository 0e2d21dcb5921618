"""How long the garbage collector stopped a thread inside other events: no time of theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.events import Events, Int64
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class Pauses:
    """The collections on one thread, in order; arrays of shape (n,), ns."""

    start: Int64
    end: Int64

    @staticmethod
    def on(thread: int, events: Events) -> Pauses:
        """Returns those of one thread.

        Args:
            thread: Its number.
            events: Of any threads.
        """
        found = events.where(events.is_kind(Kind.GC) & (events.thread == thread))
        return Pauses(found.start, found.end)

    def within(self, start: Int64, end: Int64) -> Int64:
        """Returns how long they took inside each stretch of time, ns, of the stretches' shape."""
        if len(self.start) == 0:
            return np.zeros(np.shape(start), dtype=np.int64)
        return self._until(end) - self._until(start)

    def _until(self, times: Int64) -> Int64:
        length = self.end - self.start
        place = np.searchsorted(self.start, times, side="right") - 1
        known = np.maximum(place, 0)
        before = np.concatenate([[0], np.cumsum(length)])[known]
        last = np.clip(times - self.start[known], 0, length[known])
        return np.where(place >= 0, before + last, 0)


def paused_ns(calls: Events, events: Events) -> Int64:
    """Returns for how long each call was stopped by a collection on its thread, ns.

    Args:
        calls: Some of the events.
        events: Of all threads.
    """
    found = np.zeros(len(calls), dtype=np.int64)
    for thread in np.unique(events.thread[events.is_kind(Kind.GC)]).tolist():
        mine = calls.thread == thread
        found[mine] = Pauses.on(thread, events).within(calls.start[mine], calls.end[mine])
    return found
