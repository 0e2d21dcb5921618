"""What classes and objects have, looked up where it is stored: no code of the script's runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Final

_ABSENT: Final = object()
# Hugging Face's Trainer keeps the script's collate function one deep.
_MAX_DEPTH: Final = 3
_MAX_HELD: Final = 16
# A metaclass of the script's may have an opinion on both.
mro_of: Final[Callable[[type], tuple[type, ...]]] = vars(type)["__mro__"].__get__
names_of: Final[Callable[[type], Any]] = vars(type)["__dict__"].__get__


def of_class(kind: type, name: str, default: Any = None) -> Any:
    """Returns what instances of a class have from it by a name, as it is stored."""
    for base in mro_of(kind):
        names = names_of(base)
        if name in names:
            return names[name]
    return default


def of_object(thing: Any, name: str, default: Any = None) -> Any:
    """Returns what an object has by a name, of its own or from its class, as it is stored."""
    if issubclass(type(thing), type):
        return inspect.getattr_static(thing, name, default)
    value = of_class(type(thing), name, _ABSENT)
    # Whether what the class has hides what the object has of its own.
    hides = any(of_class(type(value), method) is not None for method in ("__set__", "__delete__"))
    if value is _ABSENT or not (hides and of_class(type(value), "__get__") is not None):
        value = stored(thing).get(name, value)
    return default if value is _ABSENT else value


def stored(thing: Any) -> dict[str, Any]:
    """Returns what an object has of its own, by name; {} where its class hides that."""
    slot = of_class(type(thing), "__dict__")
    if type(slot) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = slot.__get__(thing)
    return own if type(own) is dict else {}


def has(thing: Any, name: str) -> bool:
    """Whether an object has something other than None by a name."""
    return of_object(thing, name) is not None


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what a function has from those that it is defined in, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing in it yet
            continue


def own_function(
    thing: Any, is_user_code: Callable[[CodeType], bool]
) -> tuple[FunctionType, Any] | None:
    """Returns the outermost function of the user's that a call of `thing` runs, and its owner.

    None without one. What a library's object or function holds is taken to be called by it.
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
    """Returns the function that a call of `thing` runs, and the object that it belongs to."""
    while type(thing) is functools.partial:
        thing = thing.func
    if type(thing) is MethodType:
        return thing.__func__, thing.__self__
    if type(thing) is FunctionType:
        return thing, None
    return of_class(type(thing), "__call__"), thing
