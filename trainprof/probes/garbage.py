"""Records pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any, Final

from trainprof.probes.patcher import Patcher
from trainprof.probes.session import Session
from trainprof.record.schema import Kind

# Shorter ones are thousands and together nothing: a young collection takes some 5 us.
MIN_PAUSE_NS: Final = 20_000


class GarbageProbe:
    """Uses `gc.callbacks`."""

    name = "gc"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        emit, now, kind = session.emit, session.now, int(Kind.GC)
        started = 0

        def on_collection(phase: str, info: dict[str, Any]) -> None:
            nonlocal started
            if phase == "start":
                started = now()
            elif session.log.is_open and started and now() - started >= MIN_PAUSE_NS:
                emit(kind, started, now(), 0, info.get("generation", 0))

        guarded = patcher.guarded(on_collection)
        gc.callbacks.append(guarded)
        patcher.on_undo(lambda: gc.callbacks.remove(guarded))
