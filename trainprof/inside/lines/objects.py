"""Finds the script's own functions that a DataLoader will run: dataset, collate, samplers.

Nothing of the script runs meanwhile: attributes are looked up where they are stored.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from trainprof.inside.lines.choice import DATASET, MAX_CALLED, MAX_DEPTH
from trainprof.inside.patching.static_lookup import closed_over, of_class, of_object, own_function

COLLATE: Final = "collate"
SAMPLER: Final = "sampler"
Found = tuple[FunctionType, str]

_DATASET_METHODS: Final = ("__getitem__", "__getitems__", "__iter__", "__next__")
_SAMPLER_METHODS: Final = ("__iter__", "__next__")
# Where a dataset keeps the one that it wraps (Subset, ConcatDataset), or a function that it calls
# for each sample (torchvision's).
_INNER: Final = ("dataset", "datasets", "transform", "target_transform", "transforms")
_CALLED: Final = ("__call__", "forward")
_MAX_INNER: Final = 16


class LoaderFunctions:
    """Collects what one loader runs, without a function twice.

    Args:
        is_user_code: Tells the user's own code from that of libraries.
    """

    def __init__(self, is_user_code: Callable[[CodeType], bool]) -> None:
        self._is_user_code = is_user_code
        self._found: dict[int, Found] = {}
        # Kept alive, so that no id is used again.
        self._seen: dict[int, Any] = {}
        self._owners: dict[int, Any] = {}

    def of_dataset(self, dataset: Any) -> None:
        self._of(dataset, _DATASET_METHODS, DATASET)

    def of_sampler(self, sampler: Any) -> None:
        self._of(sampler, _SAMPLER_METHODS, SAMPLER)
        for name in ("sampler", "batch_sampler"):
            self._of(of_object(sampler, name), _SAMPLER_METHODS, SAMPLER)

    def of_collate(self, collate: Any) -> None:
        self._called(collate, COLLATE)
        own = own_function(collate, self._is_user_code)
        if own is not None:
            self._add(own[0], COLLATE, own[1])

    @property
    def has_samplers(self) -> bool:
        return any(why is SAMPLER for _, why in self._found.values())

    def all(self) -> list[Found]:
        """Returns functions and why they are chosen, with those of the user's that they call."""
        found = list(self._found.values())
        for _ in range(MAX_DEPTH):
            before = len(self._found)
            for function, _ in found:
                for called, owner in self._calls(function):
                    if len(self._found) < MAX_CALLED:
                        self._called(called, f"called by {function.__qualname__}", owner)
            found = list(self._found.values())[before:]
            if not found:
                break
        return list(self._found.values())

    def _of(self, thing: Any, methods: tuple[str, ...], why: str) -> None:
        if thing is None or id(thing) in self._seen or len(self._seen) > _MAX_INNER:
            return
        self._seen[id(thing)] = thing
        for name in methods:
            self._add(_method(type(thing), name), why, thing)
        if why is not DATASET:
            return
        for name in _INNER:
            for one in _several(of_object(thing, name)):
                if name.startswith("dataset"):
                    self._of(one, methods, why)
                else:
                    self._called(one, f"called by {type(thing).__qualname__}")

    def _called(self, thing: Any, why: str, owner: Any = None) -> None:
        """Takes in what a call of `thing` runs."""
        while _is(thing, functools.partial, staticmethod, classmethod):
            thing = thing.func if _is(thing, functools.partial) else thing.__func__
        if _is(thing, MethodType):
            thing, owner = thing.__func__, thing.__self__
        if _is(thing, FunctionType):
            self._add(thing, why, owner)
        elif _is(thing, type):
            self._add(_method(thing, "__init__"), why, None)
        elif thing is not None and not _is(thing, ModuleType) and id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            for name in _CALLED:
                self._add(_method(type(thing), name), why, thing)
            for part in _several(of_object(thing, "transforms")):  # torchvision's Compose
                self._called(part, why)

    def _add(self, function: Any, why: str, owner: Any) -> None:
        if not _is(function, FunctionType):
            return
        function = inspect.unwrap(function)
        if not _is(function, FunctionType) or id(function.__code__) in self._found:
            return
        if self._is_user_code(function.__code__):
            self._found[id(function.__code__)] = (function, why)
            self._owners[id(function.__code__)] = owner

    def _calls(self, function: FunctionType) -> Iterator[tuple[Any, Any]]:
        """Yields what a function's names stand for, where that may be a function of the user's."""
        owner = self._owners.get(id(function.__code__))
        modules = []
        for name in _names(function.__code__):
            thing = function.__globals__.get(name)
            if _is(thing, ModuleType):
                modules.append(thing)
            elif _is(thing, FunctionType, type):
                yield thing, None
            if owner is not None:
                method = _method(type(owner), name)
                if _is(method, FunctionType, staticmethod, classmethod):
                    yield method, owner
                held = of_object(owner, name)
                if callable(held):
                    yield held, None
            for module in modules:
                thing = vars(module).get(name)
                if _is(thing, FunctionType, type):
                    yield thing, None
        yield from ((value, None) for _, value in closed_over(function))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for thing in code.co_consts:
        if isinstance(thing, CodeType):
            yield from _names(thing)


def _is(thing: Any, *types: type) -> bool:
    """Does as isinstance, which would ask a proxy of the script's for its `__class__`."""
    return issubclass(type(thing), types)


def _method(cls: type, name: str) -> Any:
    """Returns a class's attribute as it is stored, that of a property included."""
    found = of_class(cls, name)
    return found.fget if _is(found, property) else found


def _several(held: Any) -> list[Any]:
    return list(held[:_MAX_INNER]) if _is(held, list, tuple) else [held]
