"""When a look at a backward pass may be."""

from __future__ import annotations

import sys
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainprof.probes.graph_look import Autograd


@pytest.fixture
def autograd() -> Autograd:
    session: Any = SimpleNamespace(compiler=SimpleNamespace(is_compiling=lambda: False))
    return Autograd(torch, session)


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
    monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", True)
    assert not autograd.may_compute()
