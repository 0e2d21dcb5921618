"""Reads attributes of classes and objects where they are stored, without user code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Final

_ABSENT: Final = object()
# Hugging Face's Trainer wraps the script's collate function once.
_MAX_DEPTH: Final = 3
_MAX_HELD: Final = 16
# By `type`: a metaclass of the script may override both.
mro_of: Final[Callable[[type], tuple[type, ...]]] = vars(type)["__mro__"].__get__
names_of: Final[Callable[[type], Any]] = vars(type)["__dict__"].__get__


def of_class(kind: type, name: str, default: Any = None) -> Any:
    """Returns an attribute that instances get from a class, as it is stored."""
    for base in mro_of(kind):
        names = names_of(base)
        if name in names:
            return names[name]
    return default


def of_object(thing: Any, name: str, default: Any = None) -> Any:
    """Returns an object's attribute, its own or its class's, as it is stored."""
    if issubclass(type(thing), type):
        return inspect.getattr_static(thing, name, default)
    value = of_class(type(thing), name, _ABSENT)
    # A data descriptor of the class hides the object's own attribute.
    hides = any(of_class(type(value), method) is not None for method in ("__set__", "__delete__"))
    if value is _ABSENT or not (hides and of_class(type(value), "__get__") is not None):
        value = stored(thing).get(name, value)
    return default if value is _ABSENT else value


def stored(thing: Any) -> dict[str, Any]:
    """Returns an object's `__dict__`, {} if its class hides that."""
    slot = of_class(type(thing), "__dict__")
    if type(slot) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = slot.__get__(thing)
    return own if type(own) is dict else {}


def has(thing: Any, name: str) -> bool:
    """Returns whether an object's attribute exists and is not None."""
    return of_object(thing, name) is not None


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of a function's closure."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


def own_function(
    thing: Any, is_user_code: Callable[[CodeType], bool]
) -> tuple[FunctionType, Any] | None:
    """Returns the outermost user function that a call of `thing` runs and its owner, else None.

    Functions that a library's object or function holds are assumed to be called by it.
    """
    here = [thing]
    for _ in range(_MAX_DEPTH):
        held: list[Any] = []
        for callee in here:
            function, owner = _called_by(callee)
            if type(function) is not FunctionType:
                continue
            if is_user_code(function.__code__):
                return function, owner
            held += [*stored(owner).values(), *(value for _, value in closed_over(function))]
        here = held[:_MAX_HELD]
    return None


def _called_by(thing: Any) -> tuple[Any, Any]:
    """Returns the function that a call of `thing` runs and the object it is bound to."""
    while type(thing) is functools.partial:
        thing = thing.func
    if type(thing) is MethodType:
        return thing.__func__, thing.__self__
    if type(thing) is FunctionType:
        return thing, None
    return of_class(type(thing), "__call__"), thing
