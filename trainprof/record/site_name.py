"""How a place in the user's code is called."""

from __future__ import annotations

import os
from typing import Any, Final

UNKNOWN_SITE: Final = "unknown"


def site_name(place: Any, cwd: str | None) -> str:
    """Returns `file.py:41` for a SITE text's [file, line, function].

    Args:
        place: The decoded text; anything else gives UNKNOWN_SITE.
        cwd: Files below it are shown relative to it; None shows all as they are.
    """
    if not isinstance(place, list) or len(place) < 2:
        return UNKNOWN_SITE
    file = str(place[0])
    if cwd and os.path.isabs(file):
        relative = os.path.relpath(file, cwd)
        file = file if relative.startswith(os.pardir) else relative
    return f"{file}:{place[1]}"
