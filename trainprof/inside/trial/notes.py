"""Shared by the probes of a trial: its loaders, and the notes on what it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FrameType, ModuleType
from typing import Any

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic


class TrialNotes:
    """Notes each change that a trial applied, or why it could not.

    `asked`: the changes, with the reason to note if one never happens. Functions in `at_end` are
    called before that.
    """

    name = "trial"

    def __init__(self, asked: Mapping[str, str]) -> None:
        self.at_end: list[Callable[[], None]] = []
        self._asked = dict(asked)
        self._applied: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._log: EventLog | None = None

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._log = session.log
        session.on_end.subscribe(patcher.guarded(self._finish))

    def apply(self, name: str, value: Any) -> None:
        if name not in self._applied or self._applied[name] != value:
            self._applied[name] = value
            self._write()

    def refuse(self, name: str, why: str) -> None:
        """Notes why a change was not applied somewhere; the first reason counts."""
        if name not in self._refused:
            self._refused[name] = why
            self._write()

    def take_back(self, name: str, why: str) -> None:
        self._applied.pop(name, None)
        self._refused[name] = why
        self._write()

    def _write(self) -> None:
        if self._log is not None:
            note = {"applied": dict(self._applied), "refused": dict(self._refused)}
            self._log.note(Topic.TRIAL, note)

    def _finish(self) -> None:
        if self._log is None or not self._log.is_open or is_loader_worker():
            return
        for check in self.at_end:
            check()
        for name, why in self._asked.items():
            if name not in self._applied and name not in self._refused:
                self.refuse(name, why)


class TrialSites:
    """Identifies loaders by the lines that built them; a framework's copy has the original's."""

    def __init__(self, loader: LoaderProbe, sites: Iterable[str]) -> None:
        self._loader = loader
        self._sites = tuple(sites)

    def site_of(self, session: Session, loader: Any, frame: FrameType | None) -> str | None:
        """Returns the site, `train.py:84`, of an iterated loader of the trial, else None."""
        if not self._sites or is_loader_worker():
            return None
        site = session.sites.shown(self._loader.site_of(loader, frame), session.begun_in)
        return site if site in self._sites else None
