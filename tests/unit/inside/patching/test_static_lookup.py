"""Names are looked up where they are stored, whatever the script's classes think of it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from trainprof.inside.patching.static_lookup import has, of_class, of_object

WATCHED = ("size", "nothing", "absent", "__len__", "__mro__", "__dict__")


class Watching(type):
    def __getattribute__(cls, name: str) -> Any:
        assert name not in WATCHED
        return super().__getattribute__(name)


class Watched(metaclass=Watching):
    size = 3

    def __getattribute__(self, name: str) -> Any:
        assert name not in WATCHED
        return super().__getattribute__(name)

    def __len__(self) -> int:
        return 1


class Heir(Watched):
    size = 4
    nothing = None


class Slotted:
    __slots__ = ("own",)


class Plain:
    def __init__(self) -> None:
        self.own, self.nothing = 1, None
        self.__dict__["computed"], self.__dict__["called"] = 2, 3

    @property
    def computed(self) -> int:
        raise ZeroDivisionError

    def called(self) -> None: ...


class Hiding:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError


class Filled(Slotted):
    __slots__ = ()

    def __init__(self) -> None:
        self.own = 1


@pytest.mark.parametrize("kind", [int, list, dict, type(None), Plain, Slotted])
@pytest.mark.parametrize("name", ["__len__", "__getattribute__", "own", "absent"])
def test_it_is_what_python_finds_statically(kind: type, name: str) -> None:
    assert of_class(kind, name) is inspect.getattr_static(kind, name, None)


def test_an_objects_own_counts_as_well() -> None:
    assert has(Plain(), "own")
    assert not has(Plain(), "nothing")
    assert not has(Plain(), "absent")
    assert has(Heir(), "size")
    assert not has(Heir(), "nothing")
    assert not has(object(), "own")
    assert has([], "__getitem__")
    assert has(Slotted(), "own")
    assert not has(Hiding(), "own")


@pytest.mark.parametrize(
    "thing", [Plain(), Filled(), [], 1, None, Plain, int, print, SimpleNamespace(own=1)]
)
@pytest.mark.parametrize("name", ["own", "nothing", "computed", "called", "size", "__len__", "no"])
def test_of_an_object_it_is_what_python_finds_statically(thing: Any, name: str) -> None:
    assert of_object(thing, name, 5) is inspect.getattr_static(thing, name, 5)
