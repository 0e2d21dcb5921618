"""Records calls by which torch gives the memory that it keeps back to a device."""

from __future__ import annotations

from types import FrameType, ModuleType

from trainprof.inside.device.accelerator import device_modules
from trainprof.inside.patching.patcher import Arguments, Patcher, recorded_after
from trainprof.inside.session import Session
from trainprof.record.schema import Kind


class EmptiedCachesProbe:
    """Wraps `empty_cache` of every kind of device."""

    name = "emptied_caches"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        make = recorded_after(session.now, patcher.guarded(self._emptied))
        for module in device_modules(torch):
            here = [
                (one, "empty_cache")
                for one in (module, getattr(module, "memory", None))
                if one is not None and "empty_cache" in vars(one)
            ]
            if here and len({id(vars(one)[name]) for one, name in here}) == 1:
                patcher.around_if_there(make, *here)

    def _emptied(self, start: int, end: int, caller: FrameType | None, _: Arguments) -> None:
        site = self._session.sites.find(caller)
        self._session.emit(_CACHE_EMPTIED, start, end, site, 0, 0)


_CACHE_EMPTIED = int(Kind.CACHE_EMPTIED)
