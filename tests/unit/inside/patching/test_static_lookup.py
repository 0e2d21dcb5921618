"""Names are looked up where they are stored, whatever the script's classes think of it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from trainprof.inside.patching.static_lookup import of_class, of_object


def refuses(self: object, name: str) -> Any:
    assert name in ("__class__", "__doc__")
    return object.__getattribute__(self, name)


Watching = type("Watching", (type,), {"__getattribute__": refuses})


class Slotted:
    __slots__ = ("own",)


class Filled(Slotted):
    __slots__ = ()

    def __init__(self) -> None:
        self.own = 1


class Plain:
    def __init__(self) -> None:
        self.own, self.nothing = 1, None
        self.__dict__["computed"], self.__dict__["called"] = 2, 3

    @property
    def computed(self) -> int:
        raise ZeroDivisionError

    def called(self) -> None: ...


@pytest.mark.parametrize(
    "thing", [Plain(), Filled(), [], 1, None, Plain, int, print, SimpleNamespace(own=1)]
)
@pytest.mark.parametrize("name", ["own", "nothing", "computed", "called", "size", "__len__", "no"])
def test_it_is_what_python_finds_statically(thing: Any, name: str) -> None:
    assert of_object(thing, name, 5) is inspect.getattr_static(thing, name, 5)
    assert of_class(type(thing), name) is inspect.getattr_static(type(thing), name, None)


def test_no_class_of_the_scripts_is_asked() -> None:
    watched: Any = Watching("Watched", (), {"size": 4, "__getattribute__": refuses})
    assert (of_class(watched, "size"), of_class(watched, "absent", 5)) == (4, 5)
    assert of_object(object.__new__(watched), "size") == 4
