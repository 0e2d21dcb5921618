"""The hot path in C, where it is built; everywhere else its twins in Python do the same."""

from __future__ import annotations

import functools
import os
import sys
import zlib
from types import ModuleType
from typing import Any, Final

PURE_PYTHON: Final = "TRAINPROF_PURE_PYTHON"
_HAS_GIL: Final = "_is_gil_enabled"


def compiled() -> Any:
    """Returns the extension module; None if it is not built from this source, or PURE_PYTHON is 1.

    Nor is it used by Python without the GIL, which importing it would enable.
    """
    if os.environ.get(PURE_PYTHON) == "1" or not getattr(sys, _HAS_GIL, lambda: True)():
        return None
    return _extension()


@functools.cache
def _extension() -> ModuleType | None:
    try:
        from trainprof.record import _hot
    except ImportError:
        return None
    try:
        with open(os.path.join(os.path.dirname(__file__), "_hot.c"), "rb") as file:
            is_newest = zlib.crc32(file.read()) == getattr(_hot, "SOURCE", None)
    except OSError:  # installed, without the source
        is_newest = True
    return _hot if is_newest else None
