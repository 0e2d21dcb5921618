"""What lies in a script's containers, without any code of theirs being run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_CONTAINERS: Final = (list, tuple, dict)


def is_container(thing: Any) -> bool:
    """Whether it is a list, tuple or dict; what only says of itself that it is one is none."""
    return issubclass(type(thing), _CONTAINERS)


def elements_of(container: Any) -> Iterator[Any]:
    """Returns what a list, tuple or dict, whoever made its class, holds: of a dict its values."""
    if issubclass(type(container), dict):
        return iter(list(dict.values(container)))
    if issubclass(type(container), list):
        return list.__iter__(container)
    return tuple.__iter__(container)
