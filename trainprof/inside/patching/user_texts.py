"""The texts of the user's files that are imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final

from trainprof.inside.patching.static_lookup import stored
from trainprof.record.files import contents_of

_LARGEST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 500


def any_text(is_user_file: Callable[[str], bool], is_it: Callable[[str], bool]) -> bool:
    """Whether one of the user's texts is such; True as well where one cannot be read."""
    own = _paths(is_user_file)
    if len(own) > _MOST_FILES:
        return True
    texts = (text_of(path) for path in own)
    return any(text is None or is_it(text) for text in texts)


def lines_with(
    is_user_file: Callable[[str], bool], pattern: re.Pattern[str]
) -> list[tuple[str, int]]:
    """Returns the lines that a pattern is in, comments apart: path and number, from 1."""
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
    """Returns a line of a file, from 1, without its comment; "" where it cannot be read."""
    lines = (text_of(path) or "").splitlines()
    return lines[number - 1].partition("#")[0] if 0 < number <= len(lines) else ""


def text_of(path: str) -> str | None:
    """Returns what a file says; None where it is a pipe, cannot be read, or is very long."""
    data = contents_of(path, _LARGEST_BYTES)
    return None if data is None else data.decode(errors="replace")


def _paths(is_user_file: Callable[[str], bool]) -> list[str]:
    """Returns the user's files, in the order in which they were imported."""
    files = [stored(module).get("__file__") for module in [*sys.modules.values()]]
    return list(dict.fromkeys(x for x in files if isinstance(x, str) and is_user_file(x)))
