"""Our median is that of Python."""

from __future__ import annotations

import statistics

import pytest

from trainprof.probes.middle import median


@pytest.mark.parametrize("numbers", [[3], [4, 1], [5, 1, 3], [2, 9, 2, 4], range(10, 0, -1)])
def test_it_is_that_of_statistics(numbers: list[int]) -> None:
    assert median(numbers) == statistics.median(numbers)


def test_of_nothing_there_is_none() -> None:
    with pytest.raises(ValueError, match="no numbers"):
        median([])
