"""A trial ends with who started it: nobody would read its results, and it would disturb others."""

from __future__ import annotations

import signal
from typing import Final

# As of prctl(2).
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Has the system send SIGTERM to this process once its parent is gone, however that ended."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
