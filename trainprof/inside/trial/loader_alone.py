"""Draws batches back to back without training, and ends the run: how fast a loader can go."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame, loaded
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial.notes import TrialNotes, TrialSites


class LoaderAloneProbe:
    """Hooks `__next__` around LoaderProbe's hook, which records each batch as usual.

    A `next` with gradients off is left alone: that is evaluation. `batches` is how many to draw,
    over several epochs if needed; None for one epoch.
    """

    name = "trial_alone"

    def __init__(
        self, loader: LoaderProbe, sites: TrialSites, notes: TrialNotes, *, batches: int | None
    ) -> None:
        self._loader, self._sites, self._notes = loader, sites, notes
        self._batches = batches
        # By the id of an iterator; kept, for a script may let go of one that it iterates.
        self._loaders: dict[int, Any] = {}
        self._is_waiting = True

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        dataloader = loaded("torch.utils.data.dataloader")
        self._base = dataloader._BaseDataLoaderIter
        self._session, self._iterate = session, dataloader.DataLoader.__iter__
        self._loader.on_new_iterator.append(patcher.guarded(self._entered))
        is_learning, loaders = torch.is_grad_enabled, self._loaders

        def make(original: Wrapped) -> Wrapped:
            def __next__(iterator: Any) -> Any:
                try:
                    if self._is_waiting and id(iterator) in loaders and is_learning():
                        self._is_waiting = False
                        if self._may_end_the_run():
                            self._draw(original, iterator)
                        loaders.clear()
                    return original(iterator)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return __next__

        patcher.around(make, (self._base, "__next__"))

    def _entered(self, iterator: Any, loader: Any) -> None:
        if not self._is_waiting or is_loader_worker():
            return
        if self._sites.site_of(self._session, loader, sys._getframe(4)) is not None:
            key = id(iterator)
            self._loaders[key] = loader
            self._session.keep_track(iterator, self._loaders, key)

    def _may_end_the_run(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            return True
        self._notes.refuse("data", "the loader is not iterated on the main thread")
        # What would follow is the baseline, which other trials measure.
        self._session.limit.end_trial_soon()
        return False

    def _draw(self, take: Wrapped, iterator: Any) -> None:
        loader = self._loaders[id(iterator)]
        self._notes.apply("data", "alone")
        drawn = in_epoch = 0
        while self._batches is None or drawn < self._batches:
            try:
                take(iterator)
            except StopIteration:
                if self._batches is None or in_epoch == 0:
                    break
                iterator, in_epoch = self._next_epoch(loader), 0
                continue
            drawn, in_epoch = drawn + 1, in_epoch + 1
        self._session.limit.end_trial()

    def _next_epoch(self, loader: Any) -> Any:
        fresh = iter(loader)
        # What a class makes of its batches (a generator) is not the loader's own work.
        return fresh if isinstance(fresh, self._base) else self._iterate(loader)
