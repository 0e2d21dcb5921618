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
        # By id, as in CallSites: those judged are kept, so that no id is used again.
        self._known: dict[int, bool] = {}
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
            known = self._known[id(code)] = _uses_torch(code, names)
            self._judged.append(code)
        return known


def _uses_torch(code: CodeType, module: dict[str, Any]) -> bool:
    names = code.co_names
    # As a method of tensors, or as what the function imports.
    if not set(_OF_ARRAYS).isdisjoint(names):
        return False
    is_there = False
    # At once: its own thread may go on to define names.
    for name, thing in list(dict.items(module)):
        package = _package_of(thing)
        if package in _OF_ARRAYS and name in names:
            return False
        is_there |= package == "torch"
    return is_there


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
