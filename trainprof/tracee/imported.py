"""The user's own modules that a process has imported, told as it comes to its end.

Only where they lie is told: what they are made of is read by the supervisor, once the script is
gone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from trainprof.record.names import IMPORTED

# A project has fewer. Of a large library that is installed in place the rest is left out.
MOST_MODULES: Final = 500
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Python's own, and ours.
_NOT_OWN: Final = tuple(
    os.path.dirname(file) + os.sep for file in (os.__file__, os.path.dirname(__file__))
)
_RUN_AS: Final = frozenset({"__main__", "__mp_main__"})


def own_modules(modules: Mapping[str, object]) -> dict[str, str]:
    """Returns the file of each module that was not installed, those of small packages first.

    Nothing of the modules' own is called: a lazy one would be loaded by being asked.

    Args:
        modules: As `sys.modules` has them.
    """
    found: dict[str, str] = {}
    for name, module in list(modules.items()):
        if not issubclass(type(module), ModuleType) or name in _RUN_AS:
            continue
        file = ModuleType.__getattribute__(module, "__dict__").get("__file__")
        if type(file) is str and type(name) is str and _is_own(file):
            found[name] = file
    sizes = Counter(_package(name) for name in found)
    ordered = sorted(found, key=lambda name: (sizes[_package(name)], name))
    return {name: found[name] for name in ordered[:MOST_MODULES]}


def tell_imported(modules: Mapping[str, object], directory: str) -> None:
    """Writes down where they lie, one JSON object in one line; without any, nothing.

    Args:
        modules: As `sys.modules` has them.
        directory: The run's.

    Raises:
        OSError: If it cannot be written.
    """
    import json

    found = own_modules(modules)
    if not found:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, IMPORTED), flags, 0o600)
    try:
        os.write(descriptor, json.dumps(found).encode("ascii") + b"\n")
    finally:
        os.close(descriptor)


def _is_own(file: str) -> bool:
    return (
        file.endswith(".py")
        and file.startswith(os.sep)
        and not file.startswith(_NOT_OWN)
        and not any(part in file for part in _INSTALLED)
    )


def _package(name: str) -> str:
    return name.partition(".")[0]
