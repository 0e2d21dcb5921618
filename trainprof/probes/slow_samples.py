"""Finds the samples that took longest, without a call of ours around any of them."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from trainprof.record.schema import Kind, SlowSampleFlag

DEFAULT_KEPT: Final = 10
# A stamp takes 0.2 us. Only in the process that trains does that delay anybody.
SHORT_SAMPLE_NS: Final = 10_000
_ABSENT: Final = object()
_MAX_DEPTH: Final = 8
_MAX_INDEX: Final = (1 << 63) - 1


class StampedIndices(list[Any]):
    """A batch's indices, noting when each is asked for: that is when the sample before is done.

    torch runs `[dataset[i] for i in indices]`. While a sample is made, nothing of ours runs.
    """

    __slots__ = ("_now", "stamps")

    def __init__(self, indices: list[Any], now: Callable[[], int]) -> None:
        super().__init__(indices)
        self._now = now
        self.stamps: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        now, stamp = self._now, self.stamps.append
        for index in super().__iter__():
            stamp(now())
            yield index


class SlowSamples:
    """Records each sample that is among the slowest so far of this process.

    Args:
        emit: The log's.
        kept: How many are among the slowest.
    """

    def __init__(self, emit: Callable[..., None], kept: int = DEFAULT_KEPT) -> None:
        self._emit = emit
        self._kept = kept
        self._slowest: list[int] = []
        self._took_ns = self._samples = 0

    def count(self, took_ns: int, samples: int) -> None:
        """Takes note of a fetch, without its collate."""
        self._took_ns += took_ns
        self._samples += samples

    def is_worth_it(self) -> bool:
        """False where samples take so little that stamping each would be felt."""
        return self._took_ns >= self._samples * SHORT_SAMPLE_NS and self._kept > 0

    def look(self, indices: StampedIndices, end: int, site: int) -> None:
        """Looks through a batch.

        Args:
            indices: Of the batch.
            end: When its last sample was done, ns.
            site: The loader's id, 0 if it is not known.
        """
        stamps, slowest = indices.stamps, self._slowest
        if not stamps or not self._kept:
            return
        is_full = len(slowest) >= self._kept
        if is_full and end - stamps[0] <= slowest[0]:
            return
        for place, (start, done) in enumerate(zip(stamps, [*stamps[1:], end], strict=True)):
            took = done - start
            if not is_full:
                heapq.heappush(slowest, took)
                is_full = len(slowest) >= self._kept
            elif took > slowest[0]:
                heapq.heapreplace(slowest, took)
            else:
                continue
            index = indices[place] if place < len(indices) else None
            if type(index) is int and 0 <= index <= _MAX_INDEX:
                self._emit(_SLOW_SAMPLE, start, done, site, index, SlowSampleFlag.IS_INDEX)
            else:
                self._emit(_SLOW_SAMPLE, start, done, site, place)


def asks_one_by_one(dataset: Any, torch: ModuleType) -> bool:
    """True if torch will ask this dataset for each sample of a batch by itself.

    One with `__getitems__` takes the list of indices as a whole, and must get the script's own.
    """
    subset = getattr(getattr(torch.utils, "data", None), "Subset", None)
    for _ in range(_MAX_DEPTH):
        if type(dataset) is not subset:
            found = inspect.getattr_static(dataset, "__getitems__", _ABSENT)
            dynamic = inspect.getattr_static(type(dataset), "__getattr__", _ABSENT)
            return found is _ABSENT and dynamic is _ABSENT
        # torch's Subset goes through the list of indices in the same way, if what it is of does.
        dataset = getattr(dataset, "dataset", None)
    return False


_SLOW_SAMPLE = int(Kind.SLOW_SAMPLE)
