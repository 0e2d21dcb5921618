"""Short names for places in the user's code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

UNKNOWN_SITE: Final = "unknown"


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
        place = self._texts.get(number)
        if not isinstance(place, list) or len(place) < 2:
            return UNKNOWN_SITE
        return f"{self._short(str(place[0]))}:{place[1]}"

    def _short(self, file: str) -> str:
        if not self._cwd or not os.path.isabs(file):
            return file
        relative = os.path.relpath(file, self._cwd)
        return file if relative.startswith(os.pardir) else relative
