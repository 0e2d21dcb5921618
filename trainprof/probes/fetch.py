"""Records the making of each batch, `dataset[i]` and collate, in the process that does it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainprof.probes.loader import LoaderProbe
from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame, uncounted
from trainprof.probes.session import Session
from trainprof.record.schema import Kind

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
        self._session = session
        self._wrap_collate = patcher.guarded(self._time_collate)
        for fetcher in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(module, fetcher, None)
            if cls is None:
                raise HookPointMissing(f"{fetcher} does not exist")
            patcher.around(self._make_fetch, (cls, "fetch"))

    def _make_fetch(self, original: Wrapped) -> Wrapped:
        emit, now, loader = self._session.emit, self._session.now, self._loader
        wrap_collate = self._wrap_collate

        def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(getattr(self, "collate_fn", None)) is not _TimedCollate:
                wrap_collate(self)
            start = now()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                samples = len(args[0]) if args and type(args[0]) is list else 1
                emit(_FETCH, start, now(), loader.creating, samples, _worker_number())

        return fetch

    def _time_collate(self, fetcher: Any) -> None:
        fetcher.collate_fn = _TimedCollate(fetcher.collate_fn, self._session)


class _TimedCollate:
    """The fetcher's collate function, timed; lives on the fetcher, which is torch's own object."""

    def __init__(self, collate: Wrapped, session: Session) -> None:
        self._collate = collate
        self._emit, self._now = session.emit, session.now

    def __call__(self, samples: Any) -> Any:
        start = self._now()
        try:
            return self._collate(samples)
        except BaseException as error:
            hide_our_frame(error)
            raise
        finally:
            self._emit(_COLLATE, start, self._now())


uncounted(_TimedCollate.__call__)
_FETCH, _COLLATE = int(Kind.FETCH), int(Kind.COLLATE)


def _worker_number() -> int:
    """Worker id + 1 in a loader worker, 0 in the main process."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(worker, "_worker_info", None)
    return 0 if info is None else min(info.id + 1, 255)
