"""Datasets of one line are told apart by the lowest number that none of them has."""

from __future__ import annotations

from typing import Any

from trainprof.probes.dataset_numbers import DatasetNumbers, LowestFree


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
