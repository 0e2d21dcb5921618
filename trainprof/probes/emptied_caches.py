"""Records calls by which torch gives the memory that it keeps back to a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from trainprof.probes.accelerator import device_modules
from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import Kind

Wrapped = Callable[..., Any]


class EmptiedCachesProbe:
    """Wraps `empty_cache` of every kind of device."""

    name = "emptied_caches"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session, self._patcher = session, patcher
        for module in device_modules(torch):
            here = [
                (one, "empty_cache")
                for one in (module, getattr(module, "memory", None))
                if one is not None and "empty_cache" in vars(one)
            ]
            if here and len({id(vars(one)[name]) for one, name in here}) == 1:
                patcher.around_if_there(self._make, *here)

    def _make(self, original: Wrapped) -> Wrapped:
        now, record = self._session.now, self._patcher.guarded(self._emptied)

        def empty_cache(*args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                record(start, now(), sys._getframe().f_back)

        return empty_cache

    def _emptied(self, start: int, end: int, caller: FrameType | None) -> None:
        site = self._session.sites.find(caller)  # none where Python itself calls it, at exit
        self._session.emit(_CACHE_EMPTIED, start, end, site, 0, 0)


_CACHE_EMPTIED = int(Kind.CACHE_EMPTIED)
