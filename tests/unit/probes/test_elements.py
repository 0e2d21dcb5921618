"""A script's containers are looked into without their code."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

from trainprof.probes.elements import elements_of, is_container


class OfList(list[int]):
    def __iter__(self) -> Any:
        raise AssertionError("asked")

    def __len__(self) -> int:
        raise AssertionError("asked")


class OfDict(dict[str, int]):
    def values(self) -> Any:
        raise AssertionError("asked")

    __iter__ = values


class Claims:
    @property
    def __class__(self) -> type:
        raise AssertionError("asked")

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise AssertionError("asked")


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    "container",
    [
        [1, 2],
        (1, 2),
        {"a": 1, "b": 2},
        OfList([1, 2]),
        OfDict(a=1, b=2),
        Pair(1, 2),
        OrderedDict(a=1, b=2),
    ],
)
def test_what_is_held_is_told_without_the_containers_code(container: Any) -> None:
    assert is_container(container)
    assert list(elements_of(container)) == [1, 2]


@pytest.mark.parametrize("thing", [1, "text", {1, 2}])
def test_others_are_no_containers(thing: Any) -> None:
    assert not is_container(thing)


def test_what_says_that_it_is_one_is_not_asked() -> None:
    assert not is_container(Claims())
