"""This process's resource usage and the cores it may use.

It loads Python's `resource` by path: torch does not import it, so a `resource.py` in the script's
folder would be imported instead.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from types import ModuleType
from typing import Final

from trainprof.inside.patching.call_site import standard_library

_NAME: Final = "resource"


def _own() -> ModuleType:
    """Returns Python's module without adding it to sys.modules; ImportError without one."""
    spec = importlib.machinery.BuiltinImporter.find_spec(_NAME)
    if spec is None:
        places = [os.path.join(place, "lib-dynload") for place in standard_library()]
        spec = importlib.machinery.PathFinder.find_spec(_NAME, places)
    if spec is None or spec.loader is None:
        raise ImportError(_NAME)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_resource = _own()
getrusage = _resource.getrusage
RUSAGE_SELF: Final[int] = _resource.RUSAGE_SELF
# Linux only.
RUSAGE_THREAD: Final[int | None] = getattr(_resource, "RUSAGE_THREAD", None)


# With these OpenMP binds each thread, the calling one too, to different cores.
_BIND_THREADS: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_OFF: Final = frozenset(("", "false", "none", "disabled"))


def own_cores() -> str | None:
    """Returns the logical CPUs that the calling thread may use, such as 0-3,8.

    None if unknown, or if other threads may use different ones.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    if any(os.environ.get(name, "").strip().lower() not in _OFF for name in _BIND_THREADS):
        return None
    return as_ranges(sorted(os.sched_getaffinity(0)))


def as_ranges(numbers: list[int]) -> str:
    """Returns sorted numbers in the kernel's format: 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
