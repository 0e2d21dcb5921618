"""Detects models trained in nn.DataParallel on several devices."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.patching.user_texts import lines_with
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.notes import Note

_MODULE: Final = "torch.nn.parallel.data_parallel"
_CONSTRUCTED: Final = re.compile(r"\bDataParallel\(")


@dataclass(frozen=True, slots=True)
class DataParallelNote(Note):
    """A model in nn.DataParallel.

    Attributes:
        site: Site id of the user's line that constructs it, else of the call.
        devices: Number of devices that it is copied to in each step.
    """

    KEY: ClassVar[str] = "data_parallel"

    site: int = 0
    devices: int = 0


class DataParallelProbe:
    """Checks the models that are called up to the first step."""

    name = "data_parallel"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        self._call = patcher.guarded(self._meet)
        session.on_module_call.subscribe(self._call)
        session.on_first_step.subscribe(patcher.guarded(self._stop))
        session.on_end.subscribe(patcher.guarded(self._stop))
        patcher.at_fault(self._stop)

    def _stop(self, *_: Any) -> None:
        self._session.on_module_call.unsubscribe(self._call)

    def _meet(self, call: ModuleCall) -> None:
        parallel = getattr(sys.modules.get(_MODULE), "DataParallel", None)
        if not isinstance(parallel, type) or not issubclass(type(call.module), parallel):
            return
        devices, sites = call.module.__dict__.get("device_ids") or (), self._session.sites
        if len(devices) > 1:
            lines = lines_with(sites.is_user_file, _CONSTRUCTED)
            site = sites.site_at(*lines[0]) if lines else call.site
            self._session.note(DataParallelNote(site, len(devices)))
        self._stop()
