"""Whether the user's code reads gradients itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainprof.inside.patching.user_texts import any_text

# An attribute that is no function of autograd's, and is not just set, set back or asked for.
_READ: Final = re.compile(
    r"""(?<!autograd)\.grad\b(?!\s*(?:\(|=[^=]|\.zero_\(|\.detach_\(|is\b))|["']grad["']"""
)


def reads_gradients(is_user_file: Callable[[str], bool]) -> bool:
    """Tells by the text of the user's files that are imported; True where one cannot be read."""
    return any_text(is_user_file, is_read_in)


def is_read_in(text: str) -> bool:
    """Whether a source text seems to read a gradient."""
    return any(_READ.search(line.partition("#")[0]) for line in text.splitlines())
