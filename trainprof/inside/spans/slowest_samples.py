"""Finds the samples that took longest, without a call of ours around any of them."""

from __future__ import annotations

import heapq
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import compress, filterfalse, repeat, starmap
from operator import sub
from time import perf_counter, perf_counter_ns
from types import ModuleType, WrapperDescriptorType
from typing import Any, Final

from trainprof.record.schema import Kind, SlowSampleFlag

DEFAULT_KEPT: Final = 10
# A stamp takes 0.15 us.
SHORT_SAMPLE_NS: Final = 10_000
_ABSENT: Final = object()
_MAX_INDEX: Final = (1 << 63) - 1


class StampedIndices(list[Any]):
    """A batch's indices, noting when each is asked for: that is when the sample before is done.

    torch runs `[dataset[i] for i in indices]`. While a sample is made, nothing of ours runs, and
    no Python code of ours between two: a debugger would stop in it.

    Attributes:
        clock: To be set by whoever makes one, which an `__init__` would do in three times the time.
    """

    __slots__ = ("_asked", "clock")

    clock: Callable[[], float]
    _asked: list[float]

    def __iter__(self) -> Iterator[Any]:
        asked: list[float] = []
        self._asked = asked
        # An append returns None, and so each stamp that was kept is handed on, which is never 0.
        asking = filterfalse(asked.append, starmap(self.clock, repeat(())))
        return compress(list.__iter__(self), asking)

    def stamps(self, end: float) -> list[float]:
        """Returns when each was asked for, of those that were before `end`, by the clock."""
        try:
            asked = self._asked
        except AttributeError:
            return []
        return asked if asked and asked[-1] <= end else asked[: bisect_right(asked, end)]


class SlowSamples:
    """Records each sample that is among the slowest so far of this process.

    Args:
        emit: The log's.
        now: The clock of records, ns.
        kept: How many are among the slowest.

    Attributes:
        clock: That indices are to be stamped by: the same, in seconds. Python's floats are made
            and subtracted in half the time of integers of this size.
    """

    __slots__ = (
        "_emit",
        "_kept",
        "_samples",
        "_slowest",
        "_took_ns",
        "_unit_ns",
        "clock",
    )

    def __init__(
        self, emit: Callable[..., None], now: Callable[[], int], kept: int = DEFAULT_KEPT
    ) -> None:
        self._emit = emit
        self.clock: Callable[[], float] = now
        self._unit_ns = 1
        if now is perf_counter_ns:
            self.clock, self._unit_ns = perf_counter, 1_000_000_000
        self._kept = kept
        self._slowest: list[float] = []
        self._took_ns = self._samples = 0

    def are_worth_stamps(self, ns: int = 0, samples: int = 0) -> bool:
        """False where samples take under SHORT_SAMPLE_NS each, for it would be felt.

        Args:
            ns: What a fetch took without its collating; of many quick ones some are enough.
            samples: In it.
        """
        self._took_ns += ns
        self._samples += samples
        return self._kept > 0 and self._took_ns >= self._samples * SHORT_SAMPLE_NS

    def look(self, indices: StampedIndices, end: int, site: int) -> None:
        """Looks through a batch.

        Args:
            indices: Of the batch.
            end: When its last sample was done, ns.
            site: The loader's id, 0 if it is not known.
        """
        last = end / self._unit_ns
        stamps, slowest = indices.stamps(last), self._slowest
        if not stamps:
            return
        stamps.append(last)
        is_full = len(slowest) >= self._kept
        if is_full and max(map(sub, stamps[1:], stamps)) <= slowest[0]:
            return
        for place, time in enumerate(map(sub, stamps[1:], stamps)):
            if len(slowest) < self._kept:
                heapq.heappush(slowest, time)
            elif time > slowest[0]:
                heapq.heapreplace(slowest, time)
            else:
                continue
            start, ns = round(stamps[place] * self._unit_ns), round(time * self._unit_ns)
            index = indices[place]
            if type(index) is int and 0 <= index <= _MAX_INDEX:
                self._emit(_SLOW_SAMPLE, start, start + ns, site, index, SlowSampleFlag.IS_INDEX)
            else:
                self._emit(_SLOW_SAMPLE, start, start + ns, site, place)


def asks_one_by_one(dataset: Any, torch: ModuleType) -> bool:
    """True if torch asks this dataset for each sample of a batch by itself.

    One with `__getitems__` takes the list of indices as a whole, and must get the script's own.
    """
    # torch's Subset goes through the list of indices in the same way, if what it is of does.
    if type(dataset) is getattr(getattr(torch.utils, "data", None), "Subset", None):
        dataset = getattr(dataset, "dataset", None)
    return inspect.getattr_static(dataset, "__getitems__", _ABSENT) is _ABSENT and not _may_make_up(
        type(dataset)
    )


def _may_make_up(kind: type) -> bool:
    """True if instances may answer to names that are not to be found in them."""
    ask = inspect.getattr_static(kind, "__getattribute__")
    is_plain = type(ask) is WrapperDescriptorType and ask.__objclass__.__module__ == "builtins"
    return not is_plain or inspect.getattr_static(kind, "__getattr__", _ABSENT) is not _ABSENT


_SLOW_SAMPLE = int(Kind.SLOW_SAMPLE)
