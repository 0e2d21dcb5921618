"""The hot path in C, where it is built; everywhere else its twins in Python do the same."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Final

PURE_PYTHON: Final = "TRAINPROF_PURE_PYTHON"
_HAS_GIL: Final = "_is_gil_enabled"


def compiled() -> Any:
    """Returns the extension module; None if it is not built, or PURE_PYTHON is set to 1.

    Nor is it used by Python without the GIL, which importing it would enable.
    """
    if os.environ.get(PURE_PYTHON) == "1" or not getattr(sys, _HAS_GIL, lambda: True)():
        return None
    return _extension()


def _extension() -> ModuleType | None:
    try:
        from trainprof.record import _hot
    except ImportError:
        return None
    return _hot
