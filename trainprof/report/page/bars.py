"""Horizontal bars of block characters."""

from __future__ import annotations

from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """Returns a bar of `width` cells at most for a share of 0 to 1, to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[part] if part else "")
