"""Datasets of one line are told apart by the lowest number that none of them has."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from trainprof.inside.loading.dataset_numbers import MOST_FINGERPRINTS, DatasetNumbers, LowestFree


class Dataset:
    pass


def not_tracked(*_: Any) -> bool:
    return True


def test_the_lowest_that_is_free_is_taken() -> None:
    free, taken = LowestFree(), {}
    for number in (1, 2, 3):
        assert free.take(7, taken.keys()) == number
        taken[number] = None
    assert free.take(8, ()) == 1
    del taken[2]
    assert free.take(7, taken.keys()) == 2
    taken[2] = None
    assert free.take(7, taken.keys()) == 4


class Counted(dict[int, None]):
    """Tells how often all of it is gone through."""

    walks = 0

    def __iter__(self) -> Any:
        Counted.walks += 1
        return super().__iter__()


def test_many_that_live_on_are_not_gone_through_for_each() -> None:
    free, taken = LowestFree(), Counted()
    for number in range(1, 1000):
        assert free.take(1, taken) == number
        dict.__setitem__(taken, number, None)
    assert Counted.walks == 0


def test_datasets_of_a_line_have_numbers_of_their_own() -> None:
    numbers = DatasetNumbers(not_tracked)
    first, second = Dataset(), Dataset()
    assert [numbers.of_line(1, one) for one in (first, second, first)] == [1, 2, 1]
    assert numbers.of_line(2, second) == 1
    assert numbers.of_line(1, [1, 2]) is None


class Selected:
    """As one of Hugging Face's."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint


class Tracker:
    def __init__(self) -> None:
        self.references: list[Any] = []

    def __call__(self, thing: object, table: dict[Any, Any], key: object) -> bool:
        self.references.append(weakref.ref(thing, partial(table.pop, key)))
        return True


def test_rows_selected_anew_for_each_task_take_numbers_that_are_free_again() -> None:
    numbers = DatasetNumbers(Tracker())
    living = [Selected("a"), Selected("b")]
    assert [numbers.of_line(1, one) for one in living] == [1, 2]
    found = [numbers.of_line(1, Selected(f"task {n}")) for n in range(10 * MOST_FINGERPRINTS)]
    assert {1, 2}.isdisjoint(found)
    assert max(number for number in found if number) <= MOST_FINGERPRINTS
    assert [numbers.of_line(1, one) for one in (*living, Selected("b"))] == [1, 2, 2]


def test_a_fingerprint_that_comes_back_soon_has_the_number_that_it_had() -> None:
    numbers = DatasetNumbers(Tracker())
    first = [numbers.of_line(1, Selected(f"fold {n}")) for n in range(MOST_FINGERPRINTS)]
    assert first == list(range(1, MOST_FINGERPRINTS + 1))
    again = [numbers.of_line(1, Selected(f"fold {n}")) for n in range(MOST_FINGERPRINTS)]
    assert again == first


def test_those_of_datasets_that_live_are_kept_however_many() -> None:
    numbers = DatasetNumbers(Tracker())
    living = [Selected(str(n)) for n in range(5 * MOST_FINGERPRINTS)]
    first = [numbers.of_line(1, one) for one in living]
    assert first == list(range(1, len(living) + 1))
    assert [numbers.of_line(1, one) for one in living] == first
