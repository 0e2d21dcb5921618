"""Whether a script was written for kernprof: `profile` is a name that it gets from there alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from trainprof.launch.sources import own_texts

_USES: Final = re.compile(rb"^[ \t]*@[ \t]*(?:builtins\.)?profile\b|(?<![\w.])profile\(", re.M)
# Such a text has a `profile` of its own, or asks whether kernprof runs it.
_HAS_OR_ASKS: Final = re.compile(
    rb"\bNameError\b"
    rb"|^[^#\n]*\bimport\b[^#\n]*\bprofile\b"
    rb"|\b(?:def|class)[ \t]+profile\b"
    rb"|^[ \t]*(?:builtins\.)?profile[ \t]*(?::[^=\n]*)?=(?!=)"
    rb"|[\"']profile[\"'][ \t]+(?:not[ \t]+)?in\b"
    rb"|\b(?:get|has|set)attr\([^)\n]*[\"']profile[\"']",
    re.M,
)


def needs_profile(script: str | None) -> bool:
    """Whether a script, or a file beside it, would end in a NameError without a `profile`.

    Who asks for one is told the truth: there is none. By the text alone: nothing is run.

    Args:
        script: Its file; None where nobody knows it.
    """
    if script is None:
        return False
    own, *beside = own_texts(Path(script))
    if _HAS_OR_ASKS.search(own):
        return False
    return any(_USES.search(text) and not _HAS_OR_ASKS.search(text) for text in (own, *beside))
