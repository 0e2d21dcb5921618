"""Which loaders a trial is for."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import Any

from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe


class TrialSites:
    """Knows loaders by the lines that built them; a framework's copy has the line of its model."""

    def __init__(self, loader: LoaderProbe, sites: Iterable[str]) -> None:
        self._loader = loader
        self._sites = tuple(sites)

    def site_of(self, session: Session, loader: Any, frame: FrameType | None) -> str | None:
        """Returns the site, `train.py:84`, of a loader that the trial is for, None of any other.

        Args:
            session: Of this process.
            loader: A DataLoader that is being iterated.
            frame: Of who does so.
        """
        if not self._sites:
            return None
        site = session.sites.shown(self._loader.site_of(loader, frame), session.begun_in)
        return site if site in self._sites else None
