"""Whether the user's code reads gradients itself, or writes to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainprof.probes.user_texts import any_text

# An attribute that is no function of autograd's, and is not just set, set back or asked for.
_READ: Final = re.compile(
    r"""(?<!autograd)\.grad\b(?!\s*(?:\(|=[^=]|\.zero_\(|\.detach_\(|is\b))|["']grad["']"""
)
# A gradient that is set back, or scaled, where it lies: by hand.
_WRITTEN: Final = re.compile(r"\.grad(?:\.data|\.detach_?\(\))?\.(?:zero|fill|mul|div|copy)_\(")


def reads_gradients(is_user_file: Callable[[str], bool]) -> bool:
    """Tells by the text of the user's files that are imported; True where one cannot be read."""
    return any_text(is_user_file, is_read_in)


def accumulates_by_hand(is_user_file: Callable[[str], bool]) -> bool:
    """Tells likewise whether it both reads gradients and sets some back, itself."""
    return reads_gradients(is_user_file) and any_text(is_user_file, is_written_in)


def is_read_in(text: str) -> bool:
    """Whether a source text seems to read a gradient."""
    return _is_in(text, _READ)


def is_written_in(text: str) -> bool:
    """Whether a source text seems to write to a gradient in place."""
    return _is_in(text, _WRITTEN)


def _is_in(text: str, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(line.partition("#")[0]) for line in text.splitlines())
