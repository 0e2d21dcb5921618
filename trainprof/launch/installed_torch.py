"""Which torch a script would import, without importing it."""

from __future__ import annotations

import re
from importlib import util
from pathlib import Path
from typing import Final

from trainprof.launch.target import Target
from trainprof.record.plain_file import contents_of

# It has a few hundred bytes.
_LARGEST_BYTES: Final = 1 << 16
_VERSION: Final = re.compile(rb"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def installed_torch(target: Target) -> str | None:
    """Returns torch's version as it tells it itself; None where that cannot be read.

    Of a command that brings its own Python nothing is known.
    """
    if not target.is_ours:
        return None
    try:
        found = util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None:
        return None
    text = contents_of(Path(found.origin).with_name("version.py"), _LARGEST_BYTES)
    told = None if text is None else _VERSION.search(text)
    return None if told is None else told[1].decode("utf-8", "replace")
