"""Searches the text of the user's imported files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final

from trainprof.inside.patching.static_lookup import stored
from trainprof.record.files import contents_of

_LARGEST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 500


def any_text(is_user_file: Callable[[str], bool], matches: Callable[[str], bool]) -> bool:
    """Returns whether `matches` is true for a user file; True too if one cannot be read."""
    own = _paths(is_user_file)
    if len(own) > _MOST_FILES:
        return True
    texts = (text_of(path) for path in own)
    return any(text is None or matches(text) for text in texts)


def lines_with(
    is_user_file: Callable[[str], bool], pattern: re.Pattern[str]
) -> list[tuple[str, int]]:
    """Returns (path, line number from 1) of lines that match outside of comments."""
    own = _paths(is_user_file)
    if len(own) > _MOST_FILES:
        return []
    return [
        (path, number)
        for path in own
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if pattern.search(line.partition("#")[0])
    ]


def line_of(path: str, number: int) -> str:
    """Returns a file's line (from 1) without its comment, "" if it cannot be read."""
    lines = (text_of(path) or "").splitlines()
    return lines[number - 1].partition("#")[0] if 0 < number <= len(lines) else ""


def text_of(path: str) -> str | None:
    """Returns a file's text; None for a pipe, an unreadable or a very large file."""
    data = contents_of(path, _LARGEST_BYTES)
    return None if data is None else data.decode(errors="replace")


def _paths(is_user_file: Callable[[str], bool]) -> list[str]:
    files = [stored(module).get("__file__") for module in [*sys.modules.values()]]
    return list(dict.fromkeys(x for x in files if isinstance(x, str) and is_user_file(x)))
