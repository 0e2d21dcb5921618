"""Which installed code computes by torch's operators, told by the names that its module has."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

# A function of such a module that names one of these computes with arrays, or may.
_OF_ARRAYS: Final = ("numpy", "scipy")
# As a metaclass could not answer for its class: nothing of the script's is to run.
_MODULE_OF_CLASS: Final = type.__dict__["__module__"].__get__


class TorchUsers:
    """Tells the code that may have called torch's operators: a loss of a functional API, say.

    Of libraries alone: in torch's own code and the user's no name need tell it.
    """

    def __init__(self) -> None:
        # By id, as in CallSites: those judged are kept, so that no id is used again. Whether it
        # has torch, and whether arrays without it.
        self._known: dict[int, tuple[bool, bool]] = {}
        self._judged: list[CodeType] = []

    def has(self, code: CodeType, names_of: Callable[[], dict[str, Any] | None]) -> bool:
        """Says whether a code's module has torch, and the code itself no array library.

        Args:
            code: What is asked about.
            names_of: Returns its module's names, where it is not known yet; None if they cannot be
                had now.
        """
        known = self._known.get(id(code))
        if known is None:
            names = names_of()
            if names is None:
                return False
            known = self._known[id(code)] = _uses(code, names)
            self._judged.append(code)
        return known[0]

    def has_arrays(self, code: CodeType) -> bool:
        """Says of code that was asked about whether its module has NumPy or SciPy and no torch."""
        return self._known.get(id(code), (False, False))[1]


def _uses(code: CodeType, module: dict[str, Any]) -> tuple[bool, bool]:
    """Returns whether code may compute by torch, and whether by arrays, as it has no torch."""
    names = code.co_names
    # As a method of tensors, or as what the function imports.
    by_arrays = not set(_OF_ARRAYS).isdisjoint(names)
    has_torch = has_arrays = False
    # At once: its own thread may go on to define names.
    for name, thing in list(dict.items(module)):
        package = _package_of(thing)
        by_arrays |= package in _OF_ARRAYS and name in names
        has_torch |= package == "torch"
        has_arrays |= package in _OF_ARRAYS
    return has_torch and not by_arrays, has_arrays and not has_torch


def _package_of(thing: object) -> str:
    """Returns the package that a module is in, or that something is from; empty if not known."""
    kind = type(thing)
    module: object
    if kind is ModuleType:
        module = vars(thing).get("__name__")
    elif kind is FunctionType or kind is BuiltinFunctionType:
        module = thing.__module__
    else:
        module = _MODULE_OF_CLASS(thing if issubclass(kind, type) else kind)
    return module.partition(".")[0] if type(module) is str else ""
