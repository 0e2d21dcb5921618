"""The user's modules are looked through without any of them being loaded by that."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainprof.inside.patching.user_texts import any_text, lines_with
from trainprof.inside.spans.find_syncs import _Filter


def _put(path: Path, text: str, *, is_lazy: bool, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Writes a module and imports it, or has it load itself at first use as a script may."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    if is_lazy:
        spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


class Own(ModuleType):
    """As a script may have it, which says `sys.modules[__name__].__class__ = Own`."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"it was asked for {name}")


def test_lazy_modules_stay_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\nsys.loaded_by_trainprof = True\nx = 1  # get_worker_info\n"
    _put(tmp_path / "planted_lazy.py", text, is_lazy=True, monkeypatch=monkeypatch)
    _put(tmp_path / "planted.py", "grad = 1\nx = grad\n", is_lazy=False, monkeypatch=monkeypatch)
    monkeypatch.setitem(sys.modules, "planted_own", Own("planted_own"))
    monkeypatch.setitem(sys.modules, "planted_none", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "planted_other", SimpleNamespace())  # type: ignore[arg-type]

    def is_users(path: str) -> bool:
        return path.startswith(str(tmp_path))

    assert lines_with(is_users, re.compile("grad")) == [
        (str(tmp_path / "planted.py"), line) for line in (1, 2)
    ]
    assert any_text(is_users, lambda text: "grad" in text)
    assert any_text(is_users, lambda text: "worker_info" in text)  # it may load itself yet
    assert not any_text(is_users, lambda text: "nowhere" in text)
    _Filter(lambda frame: None)
    assert not hasattr(sys, "loaded_by_trainprof")


def test_a_script_that_was_run_from_a_pipe_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "script.py"
    os.mkfifo(pipe)
    module = ModuleType("planted_pipe")
    module.__file__ = str(pipe)
    monkeypatch.setitem(sys.modules, "planted_pipe", module)

    def is_users(path: str) -> bool:
        return path == str(pipe)

    assert lines_with(is_users, re.compile("grad")) == []
    assert any_text(is_users, lambda text: False)  # nobody knows what it said
