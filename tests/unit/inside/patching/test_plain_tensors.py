"""When tensors may be computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainprof.inside.patching.plain_tensors import PlainTensors


def test_nothing_is_computed_where_torchs_profiler_would_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(compiler=SimpleNamespace(is_compiling=lambda: False))
    tensors = PlainTensors(torch, session)
    assert tensors.may_compute()
    monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", True)
    assert not tensors.may_compute()
