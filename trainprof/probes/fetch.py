"""Records the making of each batch, `dataset[i]` and collate, in the process that does it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from trainprof.probes.loader import LoaderProbe
from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame, uncounted
from trainprof.probes.session import Session
from trainprof.probes.slow_samples import (
    DEFAULT_KEPT,
    SHORT_SAMPLE_NS,
    SlowSamples,
    StampedIndices,
    asks_one_by_one,
)
from trainprof.probes.usage import SHORT_NS, BatchScale, Begun, UsageMeter
from trainprof.record.schema import COLLATE_SHIFT, Kind

Wrapped = Callable[..., Any]


class FetchProbe:
    """Hooks the fetchers, which serve the main process and every worker alike."""

    name = "fetch"

    def __init__(self, loader: LoaderProbe) -> None:
        self._loader = loader

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        module = sys.modules.get("torch.utils.data._utils.fetch")
        if module is None:
            raise HookPointMissing("torch.utils.data._utils.fetch is not loaded")
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if not hasattr(worker, "_worker_info"):
            raise HookPointMissing("torch.utils.data._utils.worker does not tell the worker")
        self._session, self._worker, self._torch = session, cast(Any, worker), torch
        self._scale = BatchScale(torch)
        throttle_file = session.options.get("throttle_file")
        self._meter = UsageMeter(
            session.emit, throttle_file if isinstance(throttle_file, str) else None
        )
        kept = session.options.get("slow_samples")
        self._slow = SlowSamples(
            session.emit, session.now, kept if isinstance(kept, int) else DEFAULT_KEPT
        )
        for fetcher in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(module, fetcher, None)
            if cls is None:
                raise HookPointMissing(f"{fetcher} does not exist")
            takes_indices = fetcher == "_MapDatasetFetcher"
            patcher.around(self._maker(patcher, takes_indices=takes_indices), (cls, "fetch"))

    def _maker(self, patcher: Patcher, *, takes_indices: bool) -> Callable[[Wrapped], Wrapped]:
        emit, now, loader = self._session.emit, self._session.now, self._loader
        worker, meter, slow = self._worker, self._meter, self._slow
        begin_usage = meter.begin
        look_back = patcher.guarded(self._look_back)
        untimed = _TimedCollate(_no_collate, now, may_be_stamped=False)

        def time_collate(fetcher: Any) -> _TimedCollate:
            """Called at the first fetch of each fetcher."""
            self._session.look_here()
            try:
                fetcher.collate_fn = timed = _TimedCollate(
                    fetcher.collate_fn,
                    now,
                    may_be_stamped=slow.is_asked_for
                    and takes_indices
                    and fetcher.auto_collation is True
                    and asks_one_by_one(fetcher.dataset, self._torch),
                )
            except Exception as error:
                patcher.fail(error)
                return untimed
            return timed

        def make(original: Wrapped) -> Wrapped:
            def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
                collate: Any = getattr(self, "collate_fn", None)
                if type(collate) is not _TimedCollate:
                    collate = time_collate(self)
                collate.began_ns = 0
                info = worker._worker_info
                number = 0 if info is None else getattr(info, "id", 254) + 1
                count, stamped = 1, None
                if args and type(args[0]) is list:
                    count = len(args[0])
                    if collate.may_be_stamped and slow.took_ns >= slow.samples * SHORT_SAMPLE_NS:
                        stamped = StampedIndices(args[0], slow.clock)
                        args = (stamped, *args[1:])
                batch = usage = None
                if meter.to_pass > 0 and meter.last_wall_ns < SHORT_NS:
                    meter.to_pass -= 1
                elif not patcher.is_silent:
                    try:
                        usage = begin_usage()
                    except Exception as error:
                        patcher.fail(error)
                start = now()
                try:
                    batch = original(self, *args, **kwargs)
                    return batch
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    end = now()
                    collated = end - collate.began_ns if collate.began_ns else 0
                    value = count | collated << COLLATE_SHIFT
                    emit(_FETCH, start, end, loader.creating, value, number & 255)
                    meter.last_wall_ns = wall = end - start
                    slow.took_ns += wall - collated
                    slow.samples += count
                    if usage is not None or stamped is not None:
                        look_back(usage, start, batch, stamped, end - collated)

            return fetch

        return make

    def _look_back(
        self,
        usage: Begun | None,
        start: int,
        batch: Any,
        stamped: StampedIndices | None,
        samples_end: int,
    ) -> None:
        """Records what a fetch took of the machine, and its slow samples.

        Args:
            usage: Of the machine before it; None where that is not measured.
            start: Of the fetch, ns.
            batch: That it made, None where it failed.
            stamped: Its indices, None where they are not stamped.
            samples_end: When its last sample was done, ns.
        """
        if usage is not None:
            self._meter.end(usage, start)
            scale = self._scale.of(batch)
            if scale is not None:
                size, parts = scale
                self._session.emit(_FETCH_BATCH, start, start, parts, size, usage[0])
        if stamped is not None:
            self._slow.look(stamped, samples_end, self._loader.creating)


class _TimedCollate:
    """The fetcher's collate function, with the time at which it last began.

    It lives on the fetcher, which is torch's own object. Collating is the end of a fetch. Whether
    the samples of this fetcher may be stamped is kept here too.
    """

    __slots__ = ("_collate", "_now", "began_ns", "may_be_stamped")

    def __init__(self, collate: Wrapped, now: Callable[[], int], *, may_be_stamped: bool) -> None:
        self._collate = collate
        self._now = now
        self.began_ns = 0
        self.may_be_stamped = may_be_stamped

    def __call__(self, samples: Any) -> Any:
        self.began_ns = self._now()
        try:
            return self._collate(samples)
        except BaseException as error:
            hide_our_frame(error)
            raise


def _no_collate(samples: Any) -> Any:
    return samples


uncounted(_TimedCollate.__call__)
_FETCH, _FETCH_BATCH = int(Kind.FETCH), int(Kind.FETCH_BATCH)
