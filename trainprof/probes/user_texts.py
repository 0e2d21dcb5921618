"""The texts of the user's files that are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

_LARGEST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 500


def any_text(is_user_file: Callable[[str], bool], is_it: Callable[[str], bool]) -> bool:
    """Whether one of the texts is such; True as well where one cannot be read.

    Args:
        is_user_file: Of a path.
        is_it: Of a text.
    """
    # A script may put there what is no module, such as None to keep one out.
    told = [getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]]
    own = {path for path in told if isinstance(path, str) and is_user_file(path)}
    return len(own) > _MOST_FILES or any(_is_in(path, is_it) for path in own)


def _is_in(path: str, is_it: Callable[[str], bool]) -> bool:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError:
        return True
    return len(data) > _LARGEST_BYTES or is_it(data.decode(errors="replace"))
