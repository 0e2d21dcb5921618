"""Warnings of torch's C code, which our wrappers call, are the script's own module's."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

Compare = Callable[..., Any]
HERE = re.escape(__name__)


def warned(number: torch.Tensor) -> float:
    return float(number)  # torch warns that it requires a gradient


@pytest.fixture(autouse=True)
def always_warns() -> Any:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.parametrize("base", ["always", "default"])
@pytest.mark.parametrize("action", ["error", "ignore", "always", "default", "module", "once"])
@pytest.mark.parametrize("module", [HERE, "elsewhere"])
def test_filters_for_a_module(same_with_us: Compare, action: Any, base: Any, module: str) -> None:
    number = torch.ones(1, requires_grad=True)

    def caught() -> list[Any]:
        globals().pop("__warningregistry__", None)
        seen: list[Any] = []
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(base)
            warnings.filterwarnings(action, module=module)
            for _ in range(2):
                try:
                    seen.append(warned(number))
                except Warning:
                    seen.append(traceback.format_exc())
        return [*seen, *((x.filename, x.lineno, str(x.message)) for x in shown)]

    kind, outcome = same_with_us(caught)
    assert kind == "returned"
    if module == HERE and action in ("error", "ignore"):
        assert len(outcome) == 2  # none was shown
    else:
        assert outcome[2][0] == __file__
