"""Finds the collate function that the script's author wrote, where a library's is around it, too.

Nothing of the script runs meanwhile: attributes are looked up where they are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from trainprof.inside.patching.static_lookup import closed_over, of_class

# Hugging Face's Trainer keeps the script's in an object that leaves out columns: one deep.
_MAX_DEPTH: Final = 3
_MAX_HELD: Final = 16


def own_function(
    collate: Any, is_user_code: Callable[[CodeType], bool]
) -> tuple[FunctionType, Any] | None:
    """Returns the outermost function of the user's that a call of `collate` runs, and its owner.

    None without one. What a library's object or function holds is taken to be called by it.

    Args:
        collate: As the loader has it.
        is_user_code: Tells the user's own code from that of libraries.
    """
    here = [collate]
    for _ in range(_MAX_DEPTH):
        held: list[Any] = []
        for one in here:
            function, owner = called_by(one)
            if type(function) is not FunctionType:
                continue
            if is_user_code(function.__code__):
                return function, owner
            held += _held_by(function, owner)
        here = held[:_MAX_HELD]
    return None


def called_by(thing: Any) -> tuple[Any, Any]:
    """Returns the function that a call of `thing` runs, and the object that it belongs to."""
    while type(thing) is functools.partial:
        thing = thing.func
    if type(thing) is MethodType:
        return thing.__func__, thing.__self__
    if type(thing) is FunctionType:
        return thing, None
    return of_class(type(thing), "__call__"), thing


def _held_by(function: FunctionType, owner: Any) -> Iterator[Any]:
    """Yields what a function may call that its object has stored, or its closure."""
    yield from _stored(owner)
    yield from (value for _, value in closed_over(function))


def _stored(owner: Any) -> list[Any]:
    try:
        return [*object.__getattribute__(owner, "__dict__").values()]
    except AttributeError:  # None, or an object with slots
        return []
