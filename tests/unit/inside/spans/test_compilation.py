"""What torch's compiler is seen to do."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from support.session import FakeClock, Recorder
from torch._dynamo.callback import callback_handler

from trainprof.inside.spans.compilation import CompilationProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import CompileFlag, Kind, Topic


@pytest.fixture(autouse=True, scope="module")
def torch_has_compiled() -> None:
    """torch keeps threads, and changes of its own classes, from the first time on."""
    torch.compile(torch.nn.Linear(1, 1), backend="aot_eager")(torch.ones(1)).backward()


@pytest.fixture(autouse=True)
def _compiler_as_new() -> Any:
    torch._dynamo.reset()
    yield
    assert callback_handler.start_callbacks == callback_handler.end_callbacks == []
    torch._dynamo.reset()


def taking(ns: int, clock: FakeClock) -> Callable[..., Any]:
    """Returns a backend of torch.compile's that takes so long."""

    def backend(graph: Any, _: Any) -> Any:
        clock.advance(ns)
        return graph.forward

    return backend


def scaled(x: torch.Tensor, by: int) -> torch.Tensor:
    return x * by


def test_what_fails_to_compile_fails_as_without_us(same_with_us: Callable[..., Any]) -> None:
    def fail(_: Any, __: Any) -> Any:
        raise ValueError("no code for that")

    def call() -> Any:
        torch._dynamo.reset()
        return torch.compile(scaled, backend=fail)(torch.ones(2), 3)

    result, text = same_with_us(call, CompilationProbe())
    assert result == "raised"
    assert "no code for that" in text


def test_each_version_is_recorded_with_its_line_and_its_time(recorder: Recorder) -> None:
    clock = FakeClock()
    recorder.start(CompilationProbe(), now=clock)
    torch._dynamo.reset()  # which forgets who listens
    compiled = torch.compile(scaled, backend=taking(7_000, clock), dynamic=False)
    begins = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    for by in (2, 3, 3, 4):
        compiled(torch.ones(2), by)
    events = recorder.read().of(Kind.COMPILE)
    assert [(event.ns, event.value) for event in events] == [(7_000, 0), (7_000, 1), (7_000, 2)]
    assert {event.line for event in events} == {f"test_compilation.py:{begins + 2}"}
    number = CompileFlag.COUNT_KNOWN | CompileFlag.OTHER_NUMBER
    assert [event.flags for event in events] == [CompileFlag.COUNT_KNOWN, number, number]


def test_why_there_is_another_version(recorder: Recorder) -> None:
    recorder.start(CompilationProbe())
    model = torch.nn.Linear(3, 1)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad():
        compiled(torch.ones(2, 3))
    compiled(torch.ones(2, 3))
    compiled(torch.ones(4, 3))
    model.eval()
    compiled(torch.ones(4, 3))
    flags = [event.flags & ~CompileFlag.COUNT_KNOWN for event in recorder.read().of(Kind.COMPILE)]
    assert flags[:3] == [0, CompileFlag.OTHER_MODE, CompileFlag.OTHER_SHAPE]
    assert all(flag == CompileFlag.OTHER_MODE for flag in flags[3:])


def test_the_compiler_is_not_imported(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback")
    recorder.start(CompilationProbe(), OptimizerProbe())
    assert "torch._dynamo.callback" not in sys.modules
    assert recorder.read().notes(Topic.PROBE_FAILED) == []
