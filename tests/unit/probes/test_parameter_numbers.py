"""What looks keep of a parameter, to see whether it was written since."""

from __future__ import annotations

import sys
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainprof.probes.graph_look import Autograd


@pytest.fixture
def autograd() -> Autograd:
    session: Any = SimpleNamespace(compiler=SimpleNamespace(is_compiling=lambda: False))
    return Autograd(torch, session)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_numbers_that_were_written_differ(autograd: Autograd, dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, 4, dtype=dtype))
    before = autograd.numbers_of(parameter)
    assert not autograd.numbers_of(parameter).differ_from(before)
    parameter.data += 1  # which no count of writes knows
    assert autograd.numbers_of(parameter).differ_from(before)


def test_of_a_device_only_how_often_it_was_written_is_asked(autograd: Autograd) -> None:
    """To ask for a number there is to wait for all work before."""
    parameter = nn.Parameter(torch.ones(3, device="meta"))
    before = autograd.numbers_of(parameter)
    assert before.total is None
    with torch.no_grad():
        parameter.add_(1)
    assert autograd.numbers_of(parameter).differ_from(before)


def test_the_scripts_item_is_not_called(
    autograd: Autograd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def item(tensor: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(torch.Tensor, "item", item, raising=False)
    assert autograd.numbers_of(nn.Parameter(torch.ones(2))).total == 2.0


@pytest.mark.parametrize(
    ("module", "may_hook"),
    [
        (None, True),
        (SimpleNamespace(compiled_autograd_enabled=False, COMPILE_COUNTER=count()), True),
        (SimpleNamespace(compiled_autograd_enabled=True), False),
        (SimpleNamespace(COMPILE_COUNTER=count(1)), False),
    ],
    ids=["not imported", "off", "on", "has been on"],
)
def test_no_hook_where_backward_is_compiled(
    autograd: Autograd, monkeypatch: pytest.MonkeyPatch, module: Any, may_hook: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", module)
    assert autograd.may_hook() is may_hook


def test_nothing_is_computed_where_torchs_profiler_would_show_it(
    autograd: Autograd, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter = nn.Parameter(torch.ones(3))
    before = autograd.numbers_of(parameter)
    monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", True)
    assert not autograd.may_compute()
    assert autograd.numbers_of(parameter).total is None
    assert not autograd.numbers_of(parameter).differ_from(before)
    with torch.no_grad():
        parameter.add_(1)
    assert autograd.numbers_of(parameter).differ_from(before)
