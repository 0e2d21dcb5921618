"""Records the making of each batch, `dataset[i]` and collate, in the process that does it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from trainprof.probes.loader import LoaderProbe
from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame, uncounted
from trainprof.probes.session import Session
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
        self._session, self._worker = session, cast(Any, worker)
        for fetcher in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(module, fetcher, None)
            if cls is None:
                raise HookPointMissing(f"{fetcher} does not exist")
            patcher.around(self._maker(patcher), (cls, "fetch"))

    def _maker(self, patcher: Patcher) -> Callable[[Wrapped], Wrapped]:
        emit, now, loader = self._session.emit, self._session.now, self._loader
        worker = self._worker
        untimed = _TimedCollate(_no_collate, now)

        def time_collate(fetcher: Any) -> _TimedCollate:
            try:
                fetcher.collate_fn = timed = _TimedCollate(fetcher.collate_fn, now)
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
                start = now()
                try:
                    return original(self, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    end = now()
                    value = len(args[0]) if args and type(args[0]) is list else 1
                    if collate.began_ns:
                        value |= end - collate.began_ns << COLLATE_SHIFT
                    info = worker._worker_info
                    number = 0 if info is None else getattr(info, "id", 254) + 1
                    emit(_FETCH, start, end, loader.creating, value, number & 255)

            return fetch

        return make


class _TimedCollate:
    """The fetcher's collate function, with the time at which it last began.

    It lives on the fetcher, which is torch's own object. Collating is the end of a fetch.
    """

    __slots__ = ("_collate", "_now", "began_ns")

    def __init__(self, collate: Wrapped, now: Callable[[], int]) -> None:
        self._collate = collate
        self._now = now
        self.began_ns = 0

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
_FETCH = int(Kind.FETCH)
