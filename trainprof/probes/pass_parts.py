"""What the workers of a pass have copies of: the dataset, functions, and the user's parts of both.

Nothing of the script's runs: names are found in compiled code, and objects where they are stored.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

from trainprof.probes.call_site import CallSites
from trainprof.probes.collate_code import called_by, own_function
from trainprof.probes.static_lookup import closed_over, names_of, of_class
from trainprof.probes.worker_needs import attributes_of, parts_of

# A transform in a list of them, in what applies them, in a dataset that another one wraps.
_MAX_DEPTH: Final = 4
# Objects that are looked at for those of the user's.
_MAX_LOOKED_AT: Final = 64
# Functions that are read for what a sample or batch is made by.
_MAX_FUNCTIONS: Final = 64
# What is remembered of functions and classes.
_MAX_REMEMBERED: Final = 1_024
# How a dataset is asked for samples, and what makes something of them.
_ASKED: Final = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
# Settings, as scripts have them: objects without a class of the user's.
_SETTINGS: Final = (("argparse", "Namespace"), ("types", "SimpleNamespace"))
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))


@dataclass(frozen=True, slots=True)
class Part:
    """Something that workers have a copy of.

    Attributes:
        name: How it is told; "" is the dataset.
        thing: It.
        values: What it has now, by name, as far as the making of batches reads it.
    """

    name: str
    thing: Any
    values: list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class _Code:
    """The names that some functions read.

    Attributes:
        functions: Those themselves, and those that they may call.
        attributes: Of any object.
    """

    functions: tuple[FunctionType, ...]
    attributes: frozenset[str]


class PassParts:
    """Finds what a pass makes batches of, which training may change while workers have copies.

    Of the user's objects below the dataset, and of functions, those names count that the making of
    batches may read: an object may hold all of training besides.
    """

    def __init__(self, sites: CallSites) -> None:
        self._is_user_code = sites.is_user_code
        # By id; what an id was of is kept, so that it is no other's.
        self._own: dict[int, tuple[type, bool]] = {}
        self._names: dict[int, tuple[CodeType, frozenset[str], frozenset[str]]] = {}
        self._codes: dict[tuple[int, frozenset[str]], tuple[type, _Code]] = {}

    def below_dataset(self, dataset: Any) -> Iterator[Part]:
        """Yields the user's parts of a dataset, and the functions of the user's that it is by."""
        code = self._code_of(type(dataset), _ASKED)
        yield from self._functions("", code)
        yield from self._own_below("", dataset, code)

    def of_function(self, name: str, called: Any) -> Iterator[Part]:
        """Yields what a function, or an object that is called, makes batches by.

        Args:
            name: How it is told.
            called: As the loader has it.
        """
        given: list[Any] = []
        inner = called
        while type(inner) is functools.partial:
            given += (*inner.args, *inner.keywords.values())
            inner = inner.func
        found = [called_by(inner), own_function(inner, self._is_user_code)]
        seen: set[int] = set()
        for function, owner in (one for one in found if one is not None):
            if type(function) is not FunctionType or id(function) in seen:
                continue
            seen.add(id(function))
            code = self._read((function,), None if owner is None else type(owner))
            yield from self._functions(name, code)
            if owner is not None:
                yield Part(name, owner, _read_of(owner, code))
                yield from self._own_below(name, owner, code)
            for place, one in enumerate(given):
                yield from self._own_at(f"{name}[{place}]", one, code, 0)

    def _own_below(self, name: str, thing: Any, code: _Code) -> Iterator[Part]:
        for held, value in _read_of(thing, code):
            yield from self._own_at(f"{name}.{held}".lstrip("."), value, code, 1)

    def _own_at(self, name: str, thing: Any, code: _Code, depth: int) -> Iterator[Part]:
        waiting, seen = deque([(name, thing, code, depth)]), set[int]()
        while waiting and len(seen) < _MAX_LOOKED_AT:
            name, thing, code, depth = waiting.popleft()
            if id(thing) in seen or id(type(thing)) in _PLAIN:
                continue
            seen.add(id(thing))
            held = parts_of(name, thing)
            if self._is_own(type(thing)):
                code = self._code_within(type(thing), code)
                read = _read_of(thing, code)
                yield Part(name, thing, read)
                held = [(f"{name}.{known}", value) for known, value in read]
            if depth < _MAX_DEPTH:
                waiting += [(part, one, code, depth + 1) for part, one in held]

    def _functions(self, name: str, code: _Code) -> Iterator[Part]:
        for function in code.functions:
            if not self._is_user_code(function.__code__):
                continue
            values = [*closed_over(function), *self._globals_of(function)]
            plain = [(known, x) for known, x in values if id(type(x)) in _PLAIN]
            if plain:
                yield Part(name, function, [(f"{x} (a variable)", value) for x, value in plain])
            for known, x in values:
                if self._is_own(type(x)):
                    yield from self._own_at(f"{name}.{known}".lstrip("."), x, code, _MAX_DEPTH)

    def _globals_of(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        known = function.__globals__
        for name in sorted(self._names_in(function.__code__)[0]):
            # Of `exec`, they may be in a dict of a class of the script's.
            if dict.__contains__(known, name):
                yield name, dict.__getitem__(known, name)

    def _is_own(self, kind: type) -> bool:
        """Whether a class has functions of the user's, or holds settings."""
        if (kind.__module__, kind.__name__) in _SETTINGS:
            return True
        known = self._own.get(id(kind))
        if known is None:
            functions = (x for x in names_of(kind).values() if type(x) is FunctionType)
            own = any(self._is_user_code(x.__code__) for x in functions)
            known = (kind, own)
            _remember(self._own, id(kind), known)
        return known[1]

    def _code_within(self, kind: type, outer: _Code) -> _Code:
        """Returns what is read of an object that some code holds: by its own methods, too."""
        inner = self._code_of(kind, _ASKED, outer.attributes)
        return _Code(inner.functions, inner.attributes | outer.attributes)

    def _code_of(
        self, kind: type, names: tuple[str, ...], others: frozenset[str] = frozenset()
    ) -> _Code:
        """Returns what methods of a class read, of these and of other names."""
        known = self._codes.get((id(kind), others))
        if known is None:
            methods = tuple(_methods(kind, (*names, *others)))
            known = (kind, self._read(methods, kind))
            _remember(self._codes, (id(kind), others), known)
        return known[1]

    def _read(self, functions: tuple[FunctionType, ...], kind: type | None) -> _Code:
        """Reads functions, and those that they may call: methods of a class, the user's others."""
        waiting, found = deque(functions), dict[int, FunctionType]()
        attributes = set[str]()
        while waiting and len(found) < _MAX_FUNCTIONS:
            function = waiting.popleft()
            if id(function) in found:
                continue
            found[id(function)] = function
            _, read = self._names_in(function.__code__)
            new = sorted(read - attributes)
            attributes |= read
            if kind is not None:
                waiting += _methods(kind, new)
            if self._is_user_code(function.__code__):
                others = [*closed_over(function), *self._globals_of(function)]
                waiting += [
                    x
                    for _, x in others
                    if type(x) is FunctionType and self._is_user_code(x.__code__)
                ]
        return _Code(tuple(found.values()), frozenset(attributes))

    def _names_in(self, code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the names of global variables and of attributes that some code reads."""
        known = self._names.get(id(code))
        if known is None:
            variables, attributes = set[str](), set[str]()
            waiting = [code]
            while waiting:
                one = waiting.pop()
                waiting += [x for x in one.co_consts if type(x) is CodeType]
                for done in dis.get_instructions(one):
                    if done.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                        variables.add(done.argval)
                    elif done.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                        attributes.add(done.argval)
            known = (code, frozenset(variables), frozenset(attributes))
            _remember(self._names, id(code), known)
        return known[1:]


def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= _MAX_REMEMBERED:
        table.clear()
    table[key] = value


def _read_of(thing: Any, code: _Code) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attributes_of(thing) if name in code.attributes]


def _methods(kind: type, names: Iterable[str]) -> Iterator[FunctionType]:
    for name in names:
        found = of_class(kind, name)
        if type(found) is property:
            found = found.fget
        elif type(found) in (staticmethod, classmethod):
            found = found.__func__
        if type(found) is FunctionType:
            yield found
