"""What the kernel tells of this process: Python's own `resource`, whatever the script's is called.

`import torch` does not import it, and where a script's folder has a `resource.py`, that would be
run in its place, and stand in the script's own way.
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
    """Returns Python's module, which is registered nowhere.

    Raises:
        ImportError: If there is none, as on Windows.
    """
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
