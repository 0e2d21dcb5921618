"""What classes and objects have, looked up where it is stored: no code of the script's runs.

`inspect.getattr_static` does the same, and takes ten times as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

_ABSENT: Final = object()
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
    found = of_class(type(thing), name, _ABSENT)
    if found is _ABSENT or not _comes_first(type(found)):
        found = _own(thing).get(name, found)
    return default if found is _ABSENT else found


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


def _comes_first(kind: type) -> bool:
    """Whether what a class has by a name hides what an object has of its own."""
    is_asked = of_class(kind, "__get__") is not None
    return is_asked and any(of_class(kind, name) is not None for name in ("__set__", "__delete__"))


def _own(thing: Any) -> dict[str, Any]:
    slot = of_class(type(thing), "__dict__")  # a class of the script's may have a property there
    if type(slot) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = slot.__get__(thing)
    return own if type(own) is dict else {}
