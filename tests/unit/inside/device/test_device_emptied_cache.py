"""What is recorded of memory that torch gives back to a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, run_hooked

from trainprof.inside.device.memory import EmptiedCachesProbe
from trainprof.record.schema import Kind, Topic


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    kind, _ = same_with_us(lambda: torch.cuda.empty_cache(), EmptiedCachesProbe())
    assert kind == "returned"


def test_an_error_looks_the_same(
    same_with_us: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_cache() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "empty_cache", empty_cache)
        kind, _ = same_with_us(lambda: torch.cuda.empty_cache(), EmptiedCachesProbe())
    assert kind == "raised"


@pytest.mark.parametrize("module", [torch.cuda, torch.xpu], ids=["cuda", "xpu"])
def test_each_call_is_told_with_its_line(recorder: Recorder, module: Any) -> None:
    recorder.start(EmptiedCachesProbe())
    module.empty_cache()
    line = sys._getframe().f_lineno - 1
    (event,) = recorder.read().of(Kind.CACHE_EMPTIED)
    assert event.line == f"test_device_emptied_cache.py:{line}"
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_a_fault_of_ours_harms_nothing(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    session = recorder.start(EmptiedCachesProbe())

    def broken(frame: object) -> int:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(session.sites, "find", broken)
    for _ in range(2):
        torch.cuda.empty_cache()
    assert len(recorder.read().notes(Topic.PROBE_FAILED)) == 1


def test_a_call_by_python_itself_at_exit_is_none(tmp_path: Path) -> None:
    """There is no line that makes it, and nobody to hand an error to."""
    script = "import atexit, torch\natexit.register(torch.cuda.empty_cache)\n"
    (tmp_path / "script.py").write_text(script)
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
