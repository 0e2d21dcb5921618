"""Exceptions of the script's reach it as they are, whatever their classes forbid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

READ: list[str] = []


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Watching(Exception):
    """Sees which of its attributes are read and set."""

    def __getattribute__(self, name: str) -> Any:
        READ.append(name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        READ.append(name)
        super().__setattr__(name, value)


class Raising(torch.nn.Module, Dataset[int]):
    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise self.error(index)

    def forward(self, x: int) -> int:
        raise self.error(x)


@pytest.mark.parametrize("error", [Frozen, Watching])
@pytest.mark.parametrize(
    "act",
    [
        lambda error: torch.nn.Sequential(Raising(error))(3),
        lambda error: list(DataLoader(Raising(error))),
    ],
    ids=["module", "dataset"],
)
def test_an_exception_of_the_scripts_own(
    same_with_us: Callable[..., Any], act: Callable[[Any], Any], error: type[Exception]
) -> None:
    def caught() -> tuple[str, list[str]]:
        READ.clear()
        try:
            act(error)
        except Exception as found:
            return type(found).__name__, list(READ)
        raise AssertionError

    assert same_with_us(caught)[1][0] == error.__name__
