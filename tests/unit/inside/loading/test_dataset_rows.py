"""Which datasets take no list of indices, and which of them could be tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from trainprof.inside.loading.dataset_rows import is_stackable, refuses_lists

TENSORS = TensorDataset(torch.zeros(4, 2), torch.zeros(4))
PAIRS = [(torch.zeros(2), 1), (torch.ones(2), 0)]


class Own(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("asked for a sample")

    def __len__(self) -> int:
        return 4


class Listed(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return [list.__getitem__(self, one) for one in index]


class PlainList(list[Any]):
    pass


class OwnConcat(ConcatDataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return torch.zeros(len(index))


@pytest.mark.parametrize(
    ("make", "refuses"),
    [
        (lambda: PAIRS, True),
        (lambda: tuple(PAIRS), True),
        (lambda: deque(PAIRS), True),
        (lambda: PlainList(PAIRS), True),
        (lambda: {0: 1, 1: 2}, True),
        (lambda: range(4), True),
        (lambda: ConcatDataset([TENSORS, TENSORS]), True),
        (lambda: TENSORS, False),
        (lambda: Listed(PAIRS), False),
        (lambda: OwnConcat([TENSORS]), False),
        (lambda: torch.zeros(4), False),
        (lambda: np.zeros(4), False),
    ],
)
def test_what_takes_no_list_of_indices(make: Callable[[], Any], refuses: bool) -> None:
    dataset = make()
    assert refuses_lists(dataset) is refuses
    if refuses:
        with pytest.raises((TypeError, KeyError)):
            dataset[[0, 1]]
    else:
        dataset[[0, 1]]


def test_of_methods_of_the_users_nothing_is_known() -> None:
    assert not refuses_lists(Own())
    assert not refuses_lists(object())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: PAIRS, True),
        (lambda: tuple(PAIRS), True),
        (lambda: deque(PAIRS), True),
        (lambda: [[np.zeros(2), np.float32(1)]], True),
        (lambda: ConcatDataset([TENSORS, TENSORS]), True),
        (lambda: ConcatDataset([Subset(TENSORS, [1]), PAIRS]), True),
        (lambda: ConcatDataset([ConcatDataset([TENSORS]), TENSORS]), True),
        (list, False),
        (lambda: [1, 2], False),
        (lambda: [torch.zeros(2)], False),
        (lambda: [{"x": 1}], False),
        (lambda: [("a.png", 1)], False),
        (lambda: [()], False),
        (lambda: {0: PAIRS[0]}, False),
        (lambda: ConcatDataset([TENSORS, Own()]), False),
        (lambda: ConcatDataset([TENSORS] * 65), False),
        (lambda: StackDataset(TENSORS), False),
        (lambda: PlainList(PAIRS), False),
        (lambda: TENSORS, False),  # it takes them as it is
        (Own, False),
    ],
)
def test_what_could_be_put_into_tensors(make: Callable[[], Any], expected: bool) -> None:
    assert is_stackable(make()) is expected
