"""The texts of the user's files that are imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final

from trainprof.record.plain_file import contents_of

_LARGEST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 500


def any_text(is_user_file: Callable[[str], bool], is_it: Callable[[str], bool]) -> bool:
    """Whether one of the texts is such; True as well where one cannot be read.

    Args:
        is_user_file: Of a path.
        is_it: Of a text.
    """
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


def names_in(module: Any) -> dict[str, Any]:
    """Returns what a module of `sys.modules` has; one that loads itself at first use is not loaded.

    A script may put there what is no module, such as None to keep one out.
    """
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names if type(names) is dict else {}


def _paths(is_user_file: Callable[[str], bool]) -> list[str]:
    """Returns the user's files, in the order in which they were imported."""
    files = [names_in(module).get("__file__") for module in [*sys.modules.values()]]
    return list(dict.fromkeys(x for x in files if isinstance(x, str) and is_user_file(x)))
