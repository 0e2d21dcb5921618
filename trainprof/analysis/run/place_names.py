"""Short names for places in the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainprof.record.names import UNKNOWN_SITE, site_name

__all__ = ["UNKNOWN_SITE", "Sites"]


class Sites:
    """Turns site ids into `file.py:41`, relative to where the run was started."""

    def __init__(self, texts: Mapping[int, Any], cwd: str | None) -> None:
        """
        Args:
            texts: Id to [file, line, function], decoded from Topic.SITE texts.
            cwd: Absolute path, or None.
        """
        self._texts = texts
        self._cwd = cwd

    def __getitem__(self, number: int) -> str:
        return site_name(self._texts.get(number), self._cwd)

    def known(self, number: int | None) -> str | None:
        """Returns the same of an id that may be missing, None where nothing is known of it."""
        name = UNKNOWN_SITE if number is None else self[number]
        return None if name == UNKNOWN_SITE else name
