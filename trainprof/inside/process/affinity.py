"""Which cores this process may be on: a launcher, a command or the script itself may bind it."""

from __future__ import annotations

import os
from typing import Final

# With these OpenMP binds each of its threads to cores of its own, the one that asks as well: what
# that may be on says nothing of the others.
_BIND_THREADS: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_OFF: Final = frozenset(("", "false", "none", "disabled"))


def own_cores() -> str | None:
    """Returns the processors that the calling thread may be on, such as 0-3,8.

    None where the system does not tell, or where other threads may be on others.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    if any(os.environ.get(name, "").strip().lower() not in _OFF for name in _BIND_THREADS):
        return None
    return as_ranges(sorted(os.sched_getaffinity(0)))


def as_ranges(numbers: list[int]) -> str:
    """Returns sorted numbers as the kernel writes them: 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
