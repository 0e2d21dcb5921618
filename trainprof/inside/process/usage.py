"""What the kernel says of this process: its usage, and the cores that it may be on.

By Python's own `resource`: `import torch` does not import it, and where a script's folder has a
`resource.py`, that would be run in its place, and stand in the script's own way.
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
    """Returns Python's module, which is registered nowhere; ImportError if there is none."""
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
# Linux's alone.
RUSAGE_THREAD: Final[int | None] = getattr(_resource, "RUSAGE_THREAD", None)


# With these OpenMP binds each of its threads to cores of its own, the one that asks as well: what
# that may be on says nothing of the others.
_BIND_THREADS: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_OFF: Final = frozenset(("", "false", "none", "disabled"))


def own_cores() -> str | None:
    """Returns the processors that the calling thread may be on, such as 0-3,8.

    None where the system does not say, or where other threads may be on others.
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
