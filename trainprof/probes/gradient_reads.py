"""Whether the user's code reads gradients itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final

# An attribute that is no function of autograd's, and is not just set, set back or asked for.
_READ: Final = re.compile(
    r"""(?<!autograd)\.grad\b(?!\s*(?:\(|=[^=]|\.zero_\(|\.detach_\(|is\b))|["']grad["']"""
)
_LARGEST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 500


def reads_gradients(is_user_file: Callable[[str], bool]) -> bool:
    """Tells by the text of the user's files that are imported; True where one cannot be read."""
    paths = {vars(module).get("__file__") for module in list(sys.modules.values())}
    own = [path for path in paths if isinstance(path, str) and is_user_file(path)]
    return len(own) > _MOST_FILES or any(_is_in(path) for path in own)


def is_read_in(text: str) -> bool:
    """Whether a source text seems to read a gradient."""
    return any(_READ.search(line.partition("#")[0]) for line in text.splitlines())


def _is_in(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError:
        return True
    return len(data) > _LARGEST_BYTES or is_read_in(data.decode(errors="replace"))
