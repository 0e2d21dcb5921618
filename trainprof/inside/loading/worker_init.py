"""What a function does with the dataset that is called as a worker starts (`worker_init_fn`)."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.call_site import CallSites

# By which it comes to the dataset of its worker.
_OF_WORKER: Final = frozenset(("get_worker_info", "dataset"))
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def reaches_dataset(function: FunctionType, sites: CallSites) -> bool | None:
    """Whether a function of the user's changes its worker's dataset, by the names in its code.

    None where it has something else of the user's, through which it may. Nothing of it is called.

    Args:
        function: That is called as a worker starts.
        sites: Tells the user's code from that of libraries.
    """
    names = function.__code__.co_names
    if not _OF_WORKER.isdisjoint(names):
        return True
    if function.__code__.co_freevars:
        return None
    held = function.__globals__
    return None if any(_is_own(held[name], sites) for name in names if name in held) else False


def _is_own(thing: Any, sites: CallSites) -> bool:
    """Whether a global is more than a library's module or function, or a number or word."""
    kind = type(thing)
    if kind is ModuleType:
        file = thing.__dict__.get("__file__")
        return isinstance(file, str) and sites.is_user_file(file)
    if kind is FunctionType:
        return sites.is_user_code(thing.__code__)
    return kind not in _PLAIN and kind.__module__ != "builtins"
