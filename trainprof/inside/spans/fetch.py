"""Records each fetch (`dataset[i]` and collate) in the process that prepares the batch."""

from __future__ import annotations

import heapq
import inspect
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress, filterfalse, repeat, starmap
from operator import sub
from types import ModuleType, WrapperDescriptorType
from typing import Any, Final, cast

from trainprof.inside.loading.worker_notes import (
    COMPARED,
    StreamSamples,
    WorkerThreads,
    is_not_torchs,
    records_callers,
)
from trainprof.inside.patching.patcher import (
    HookPointMissing,
    Patcher,
    Wrapped,
    hide_our_frame,
    loaded,
    uncounted,
)
from trainprof.inside.process.usage import own_cores
from trainprof.inside.session import Session
from trainprof.inside.spans.fetch_usage import BatchScale, Begun, UsageMeter
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.hot import State, compiled, new_state
from trainprof.record.schema import COLLATE_SHIFT, Kind, SlowSampleFlag, Topic


class FetchProbe:
    """Hooks the fetchers, which run in the main process or in workers."""

    name = "fetch"

    def __init__(self, loader: LoaderProbe) -> None:
        self._loader = loader

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        module = loaded("torch.utils.data._utils.fetch")
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if not hasattr(worker, "_worker_info"):
            raise HookPointMissing("torch.utils.data._utils.worker has no _worker_info")
        self._session, self._worker, self._torch = session, cast(Any, worker), torch
        self._scale = BatchScale(torch)
        self._threads = WorkerThreads(torch, session)
        file, kept = (session.options.get(name) for name in ("throttle_file", "slow_samples"))
        self._meter = UsageMeter(session.emit, file if isinstance(file, str) else None)
        kept = kept if isinstance(kept, int) else DEFAULT_KEPT
        self._slow = SlowSamples(session.emit, session.now, kept)
        asked = (worker, torch.utils.data, torch.utils.data.dataloader)
        places = ((owner, "get_worker_info") for owner in asked)
        record_slow = patcher.guarded(self._slow.record)
        in_c = session.in_c("caller", is_not_torchs)
        patcher.around_if_there(records_callers(patcher, session), *places, in_c=in_c)
        for fetcher in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(module, fetcher, None)
            if cls is None:
                raise HookPointMissing(f"{fetcher} does not exist")
            takes_indices = fetcher == "_MapDatasetFetcher"
            make = partial(self._make_fetch, patcher, takes_indices)
            given = self._meter.state, self._meter.took, self._slow.state, record_slow
            in_c = session.in_c("fetch", *given, kind=_FETCH)
            patcher.around(make, (cls, "fetch"), in_c=in_c)

    def _make_fetch(self, patcher: Patcher, takes_indices: bool, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.now
        meter, passing, slow = self._meter, self._meter.state, self._slow
        prepare, begin_usage = partial(self._prepare, patcher, takes_indices), meter.begin
        record_details = patcher.guarded(self._record_details)

        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            asked = possibly_batched_index
            kept: State = getattr(self, "_trainprof", None) or prepare(self)
            kept.collate_began_ns = 0
            is_list = type(asked) is list
            count = len(asked) if is_list else 1
            # The path of most fast fetches: torch has evicted everything else from the CPU caches.
            if passing.to_pass > 0 and not kept.is_stamped:
                passing.to_pass -= 1
                start = now()
                try:
                    return original(self, asked)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    end = now()
                    if end - start >= passing.least_ns:
                        meter.took(end - start)
                    began = kept.collate_began_ns
                    value = count | (end - began) << COLLATE_SHIFT if began else count
                    emit(_FETCH, start, end, kept.loader, value, kept.worker)
            batch = usage = stamped = None
            if kept.is_stamped and is_list:
                asked = stamped = slow.stamped(asked)
            if passing.to_pass > 0:
                passing.to_pass -= 1
            elif not patcher.is_silent:
                try:
                    usage = begin_usage()
                except Exception as error:
                    patcher.fail(error)
            start = now()
            try:
                batch = original(self, asked)
                return batch
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                end = now()
                began = kept.collate_began_ns
                collated = end - began if began else 0
                value = count | collated << COLLATE_SHIFT
                emit(_FETCH, start, end, kept.loader, value, kept.worker)
                meter.took(end - start)
                if is_list:
                    kept.samples += count
                    kept.samples_ns += end - start - collated
                is_long = kept.samples_ns >= kept.samples * kept.short_sample_ns
                kept.is_stamped = kept.may_be_stamped and is_long
                if usage is not None or stamped is not None:
                    record_details(usage, start, end, batch, stamped, end - collated, kept.loader)

        return fetch

    def _prepare(self, patcher: Patcher, takes_indices: bool, fetcher: Any) -> State:
        session, now = self._session, self._session.now
        session.on_thread()
        info = self._worker._worker_info
        number = 0 if info is None else getattr(info, "id", 254) + 1
        creating = 0 if info is None else self._loader.creating
        kept = new_state()
        kept.worker, kept.loader = number & 255, creating
        kept.short_sample_ns = SHORT_SAMPLE_NS
        session.log.refer(creating)
        try:
            if info is not None:
                session.log.note(Topic.ENVIRONMENT, {"cores": own_cores()})
            kept.may_be_stamped = kept.is_stamped = (
                takes_indices
                and self._slow.are_kept
                and fetcher.auto_collation is True
                and asks_one_by_one(fetcher.dataset, self._torch)
            )
            first = None
            if info is not None and info.num_workers > 1 and not takes_indices:
                stream = StreamSamples(self._torch, session, info.seed - info.id)
                first = patcher.guarded(stream.add)
            collate = fetcher.collate_fn
            timed = _TimedCollate(collate, kept, now, first)
            in_c = None if first is not None else session.in_c("collate", kept)
            fetcher.collate_fn = timed if in_c is None else in_c(collate, timed)
            fetcher._trainprof = kept
        except Exception as error:
            patcher.fail(error)
            kept = new_state()
            kept.worker, kept.loader = number & 255, creating
        return kept

    def _record_details(
        self,
        usage: Begun | None,
        start: int,
        end: int,
        batch: Any,
        stamped: StampedIndices | None,
        samples_end: int,
        loader: int,
    ) -> None:
        """Records a fetch's resource usage, and its slow samples, which ended at `samples_end`."""
        if usage is not None:
            self._meter.end(usage, start, end - start)
            if self._worker._worker_info is not None:
                self._threads.note_changes()
            scale = self._scale.of(batch)
            if scale is not None:
                size, parts = scale
                self._session.emit(_FETCH_BATCH, start, start, parts, size, usage[0])
        if stamped is not None:
            self._slow.record(stamped, samples_end, loader)


class _TimedCollate:
    """Calls `collate` and notes when it begins; `first` gets the first batches' samples."""

    __slots__ = ("_collate", "_first", "_kept", "_left", "_now")

    def __init__(
        self,
        collate: Wrapped,
        kept: State,
        now: Callable[[], int],
        first: Callable[[Any], None] | None,
    ) -> None:
        self._collate, self._kept, self._now, self._first = collate, kept, now, first
        self._left = 0 if first is None else COMPARED

    @uncounted
    def __call__(self, samples: Any) -> Any:
        if self._left and self._first is not None:
            self._left -= 1
            self._first(samples)
        self._kept.collate_began_ns = self._now()
        try:
            return self._collate(samples)
        except BaseException as error:
            hide_our_frame(error)
            raise

    def __reduce__(self) -> Any:
        return max, ((self._collate,),)  # which returns `collate` itself


DEFAULT_KEPT: Final = 10
# A stamp takes 0.03 us in C and 0.09 us in Python.
SHORT_SAMPLE_NS: Final = 10_000
_ABSENT: Final = object()
_MAX_INDEX: Final = (1 << 63) - 1


class StampedIndices(list[Any]):
    """A batch's indices that note when each is read: then the sample before is finished.

    torch runs `[dataset[i] for i in indices]`. Between two samples only C code of ours runs, for a
    debugger would stop in Python code. `clock` is set after creation: faster than an `__init__`.
    """

    __slots__ = ("_asked", "clock")

    clock: Callable[[], int]
    _asked: list[int]

    def __iter__(self) -> Iterator[Any]:
        asked: list[int] = []
        self._asked = asked
        # append() returns None, so filterfalse passes each stamp on; stamps are never 0.
        asking = filterfalse(asked.append, starmap(self.clock, repeat(())))
        return compress(list.__iter__(self), asking)

    def stamps(self, end: int) -> list[int]:
        """Returns when each index was read, up to `end`, in ns."""
        asked: list[int] = getattr(self, "_asked", [])
        return asked[: bisect_right(asked, end)]

    def longest(self, end: int) -> int:
        """Returns the longest time between two stamps, or from the last one to `end`, in ns."""
        stamps = [*self.stamps(end), end]
        return max(map(sub, stamps[1:], stamps), default=0)


class SlowSamples:
    """Records each sample that is among this process's slowest so far.

    Attributes:
        state: Those of less than its `least_ns` are not.
    """

    __slots__ = ("_clock", "_emit", "_hot", "_kept", "_slowest", "state")

    def __init__(self, emit: Callable[..., None], now: Callable[[], int], kept: int) -> None:
        self._emit, self._clock, self._kept = emit, now, kept
        self._hot = compiled()
        self._slowest: list[int] = []
        self.state = new_state()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Drops what a fork inherits: its parent's samples."""
        self._slowest.clear()
        self.state.least_ns = 0

    @property
    def are_kept(self) -> bool:
        return self._kept > 0

    def stamped(self, indices: list[Any]) -> StampedIndices:
        if self._hot is not None:
            in_c: StampedIndices = self._hot.StampedIndices(indices, self._clock)
            return in_c
        stamped = StampedIndices(indices)
        stamped.clock = self._clock
        return stamped

    def record(self, indices: StampedIndices, end: int, site: int) -> None:
        """Records a batch's slow samples; the last one ended at `end`; `site` is the loader."""
        slowest = self._slowest
        if indices.longest(end) < self.state.least_ns:
            return
        stamps = indices.stamps(end)
        stamps.append(end)
        for place, ns in enumerate(map(sub, stamps[1:], stamps)):
            if len(slowest) < self._kept:
                heapq.heappush(slowest, ns)
            elif ns > slowest[0]:
                heapq.heapreplace(slowest, ns)
            else:
                continue
            # The script may have shortened the list.
            start, index = stamps[place], indices[place] if place < len(indices) else None
            if type(index) is int and 0 <= index <= _MAX_INDEX:
                self._emit(_SLOW_SAMPLE, start, start + ns, site, index, SlowSampleFlag.IS_INDEX)
            else:
                self._emit(_SLOW_SAMPLE, start, start + ns, site, place)
        if len(slowest) >= self._kept:
            self.state.least_ns = slowest[0] + 1


def asks_one_by_one(dataset: Any, torch: ModuleType) -> bool:
    """Returns whether torch reads each sample of a batch by `dataset[i]`.

    A `__getitems__` gets the whole list of indices, which must be the original one.
    """
    # Subset.__getitems__ iterates over the indices too, unless its dataset has __getitems__.
    if type(dataset) is getattr(getattr(torch.utils, "data", None), "Subset", None):
        dataset = getattr(dataset, "dataset", None)
    return inspect.getattr_static(
        dataset, "__getitems__", _ABSENT
    ) is _ABSENT and not _has_dynamic_attributes(type(dataset))


def _has_dynamic_attributes(kind: type) -> bool:
    """Returns whether instances may have attributes that are not stored."""
    ask = inspect.getattr_static(kind, "__getattribute__")
    is_plain = type(ask) is WrapperDescriptorType and ask.__objclass__.__module__ == "builtins"
    return not is_plain or inspect.getattr_static(kind, "__getattr__", _ABSENT) is not _ABSENT


_FETCH, _FETCH_BATCH = int(Kind.FETCH), int(Kind.FETCH_BATCH)
_SLOW_SAMPLE = int(Kind.SLOW_SAMPLE)
