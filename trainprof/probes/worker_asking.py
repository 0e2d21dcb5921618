"""Whether a stream's own code asks torch which worker it runs in, by the names in its code.

Nothing of it is called. A name stands for all functions and classes of the user's that have it, so
that what a call comes to is found with some too many, rather than missed.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from trainprof.probes.static_lookup import closed_over, mro_of, names_of
from trainprof.probes.user_texts import names_in

_ASKS: Final = "worker_info"
_MOST_THINGS: Final = 20_000
# Of a container, which may as well be the data.
_MOST_HELD: Final = 32
# A list of datasets, its class, a method that is decorated and static.
_DEPTH: Final = 7
_PLAIN: Final = (bool, int, float, str, bytes, type(None), ModuleType)


def says_worker(text: str) -> bool:
    """Whether code, its comments apart, asks torch for a worker."""
    return any(_ASKS in line.partition("#")[0] for line in text.splitlines())


def asks_for_worker(
    dataset: Any, is_user_code: Callable[[CodeType], bool], is_user_file: Callable[[str], bool]
) -> bool:
    """Whether code that a dataset has, or comes to, does; True as well where that is too much.

    Args:
        dataset: Of a class of the user's.
        is_user_code, is_user_file: Tell the user's from that of libraries.
    """
    return _Reached(is_user_code, is_user_file).ask(dataset)


class _Reached:
    """Functions of the user's that code comes to."""

    def __init__(
        self, is_user_code: Callable[[CodeType], bool], is_user_file: Callable[[str], bool]
    ) -> None:
        self._is_user_code, self._is_user_file = is_user_code, is_user_file
        self._waiting: list[FunctionType] = []
        # By id: the things, so that no other gets it, and how deep they were looked into.
        self._seen: dict[int, tuple[Any, int]] = {}
        self._named: dict[str, list[Any]] = {}

    def ask(self, dataset: Any) -> bool:
        self._name_all()
        self._take(dataset)
        while self._waiting:
            function = self._waiting.pop()
            if self._asks(function.__code__, function.__globals__):
                return True
        return len(self._seen) >= _MOST_THINGS

    def _asks(self, code: CodeType, known: dict[str, Any]) -> bool:
        """Looks through a function's code, and takes up what its names may stand for."""
        for constant in code.co_consts:
            is_name = type(constant) is str and constant.isidentifier() and _ASKS in constant
            if is_name or (type(constant) is CodeType and self._asks(constant, known)):
                return True
        for name in code.co_names:
            things = [*self._named.get(name, ()), dict.get(known, name)]
            if _ASKS in name or any(map(_is_torchs, things)):
                return True
            for thing in things if name[:2] != "__" else ():
                self._take(thing)
        return False

    def _name_all(self) -> None:
        """Notes what the user's modules, and their classes, have by which name."""
        for module in [*sys.modules.values()]:
            names = names_in(module)
            file = names.get("__file__")
            if not isinstance(file, str) or not self._is_user_file(file):
                continue
            for name, thing in [*names.items()]:
                self._named.setdefault(name, []).append(thing)
                if issubclass(type(thing), type) and self._is_own(thing):
                    for member, what in [*names_of(thing).items()]:
                        self._named.setdefault(member, []).append(what)

    def _take(self, thing: Any, depth: int = _DEPTH) -> None:
        """Takes up the user's functions that a thing is, has or holds."""
        if type(thing) in _PLAIN or len(self._seen) >= _MOST_THINGS:
            return
        before = self._seen.get(id(thing), (thing, 0))[1]
        if depth <= before:
            return
        self._seen[id(thing)] = thing, depth
        is_new = before == 0 and type(thing) is FunctionType
        if is_new and self._is_user_code(thing.__code__):
            self._waiting.append(thing)
        for one in self._parts_of(thing):
            self._take(one, depth - 1)

    def _parts_of(self, thing: Any) -> Iterable[Any]:
        kind = type(thing)
        if kind is FunctionType:
            held = (value for _, value in closed_over(thing))
            return [*held, thing.__defaults__, thing.__dict__.get("__wrapped__")]
        if kind in (staticmethod, classmethod, MethodType):
            return [thing.__func__]
        if kind is property:
            return [thing.fget]
        if kind is functools.partial:
            return [thing.func, *thing.args, *thing.keywords.values()]
        if kind in (list, tuple):
            return [*thing[:_MOST_HELD]]
        if kind is dict:
            return itertools.islice([*thing.values()], _MOST_HELD)
        if issubclass(kind, type):
            return self._methods_of(thing)
        return [kind, *_stored(thing)]

    def _methods_of(self, cls: type) -> list[Any]:
        """Returns what a class and its bases have, of the user's."""
        own = [one for one in mro_of(cls) if self._is_own(one)]
        return [what for one in own for what in [*names_of(one).values()]]

    def _is_own(self, cls: type) -> bool:
        name = names_of(cls).get("__module__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        file = names_in(module).get("__file__")
        return isinstance(file, str) and self._is_user_file(file)


def _is_torchs(thing: Any) -> bool:
    """Whether it is torch's function, by whatever name."""
    return type(thing) is FunctionType and _ASKS in thing.__name__


def _stored(thing: Any) -> list[Any]:
    try:
        return [*object.__getattribute__(thing, "__dict__").values()]
    except AttributeError:  # one with slots
        return []
