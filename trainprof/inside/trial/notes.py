"""Notes what a trial has changed in this process, and what it could not change and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic


class TrialNotes:
    """Told by the probes of a trial; written whenever it changes, so that a crash leaves it.

    Attributes:
        at_end: Called as the process ends, before what is still open is said.
    """

    name = "trial"

    def __init__(self, asked: Mapping[str, str]) -> None:
        """
        Args:
            asked: What the trial changes, by name, and why that never came to be, if it does not.
        """
        self.at_end: list[Callable[[], None]] = []
        self._asked = dict(asked)
        self._applied: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._log: EventLog | None = None

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._log = session.log
        session.at_end.append(patcher.guarded(self._finish))

    def apply(self, name: str, value: Any) -> None:
        if name not in self._applied or self._applied[name] != value:
            self._applied[name] = value
            self._write()

    def refuse(self, name: str, why: str) -> None:
        """Notes why something was not changed, somewhere; the first reason counts."""
        if name not in self._refused:
            self._refused[name] = why
            self._write()

    def take_back(self, name: str, why: str) -> None:
        """Notes that what was applied does not hold any more."""
        self._applied.pop(name, None)
        self._refused[name] = why
        self._write()

    def _write(self) -> None:
        if self._log is not None:
            metadata = {"applied": dict(self._applied), "refused": dict(self._refused)}
            self._log.note(Topic.TRIAL, metadata)

    def _finish(self) -> None:
        if self._log is None or not self._log.is_open or is_loader_worker():
            return
        for check in self.at_end:
            check()
        for name, why in self._asked.items():
            if name not in self._applied and name not in self._refused:
                self.refuse(name, why)
