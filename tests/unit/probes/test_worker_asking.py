"""Whether a stream asks for its worker: found through all that its code comes to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data import get_worker_info as which_worker

from trainprof.probes.worker_asking import asks_for_worker, says_worker


def is_user_file(path: str) -> bool:
    return path == __file__


def is_user_code(code: CodeType) -> bool:
    return is_user_file(code.co_filename)


def asks(dataset: Any) -> bool:
    return asks_for_worker(dataset, is_user_code, is_user_file)


class Whole(IterableDataset[int]):
    """Gives all of it; TODO: get_worker_info()."""

    def __iter__(self) -> Iterator[int]:
        # get_worker_info() is for later
        yield from range(6)


class Sharing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        yield from range(worker.id if worker else 0, 6, worker.num_workers if worker else 1)


class Heir(Sharing):
    """Nothing of its own."""


class ByAnotherName(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6) if which_worker() is None else ()


class Around(IterableDataset[int]):
    """Its share is that of what it holds."""

    def __init__(self, *streams: Any) -> None:
        self.streams = list(streams)

    def __iter__(self) -> Iterator[int]:
        for stream in self.streams:
            yield from stream


def share_of(numbers: range) -> range:
    return numbers if get_worker_info() is None else numbers[:1]


def through_another(numbers: range) -> range:
    return share_of(numbers)


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def count(*args: Any) -> Any:
        return function(*args)

    return count


class ByHelpers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from through_another(range(6))


class ByItsOwn(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from self.numbers()

    @staticmethod
    @counted
    def numbers() -> range:
        return share_of(range(6))


WAYS = {"whole": range, "share": share_of}


class ByTable(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from WAYS["share"](range(6))


class Sharer:
    def __call__(self, numbers: range) -> range:
        return share_of(numbers)


class ByWhatItIsGiven(IterableDataset[int]):
    def __init__(self, share: Callable[[range], range]) -> None:
        self.share = share

    def __iter__(self) -> Iterator[int]:
        yield from self.share(range(6))


class Made(IterableDataset[int]):
    """Makes what it goes through, and asks no other thing of it."""

    def __iter__(self) -> Iterator[int]:
        yield from Sharing()


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Whole(), False),
        (Around(Whole(), Whole()), False),
        (ByWhatItIsGiven(lambda numbers: numbers), False),
        (Sharing(), True),
        (Heir(), True),
        (ByAnotherName(), True),
        (Around(Whole(), Sharing()), True),
        (Around(Around(Sharing())), True),
        (ByHelpers(), True),
        (ByItsOwn(), True),
        (ByTable(), True),
        (ByWhatItIsGiven(Sharer()), True),
        (ByWhatItIsGiven(functools.partial(share_of)), True),
        (ByWhatItIsGiven(lambda numbers: share_of(numbers)), True),
        (Made(), True),
    ],
)
def test_code_that_a_stream_comes_to_asks(dataset: Any, expected: bool) -> None:
    assert asks(dataset) is expected


def test_what_is_too_much_to_look_through_may_ask() -> None:
    parts = [[[object() for _ in range(30)] for _ in range(30)] for _ in range(30)]
    assert asks(Around(parts)) is True
    assert asks(Around(list(range(100_000)))) is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("info = get_worker_info()", True),
        ("x = 1  # TODO: get_worker_info()\n", False),
        ("# get_worker_info\nfor line in file:\n", False),
        ("def seed_worker(worker_id):", False),
    ],
)
def test_comments_ask_nothing(text: str, expected: bool) -> None:
    assert says_worker(text) is expected
