"""Torch's body inside our wrapper: one frame, torch's place in tracebacks, or not at all."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.session import Recorder

from trainprof.inside.patching.patcher import hide_our_frame
from trainprof.inside.patching.wrapper_code import NotWoven, weave
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.record.hot import PURE_PYTHON

Wrapped = Callable[..., Any]
BASE = 10


class Adder:
    """What torch's classes stand for here."""

    def add(self, *values, scale=1):
        if scale == 0:
            raise ValueError("no scale")
        total = BASE + sum(values)
        return total * scale


def watched(original: Wrapped, events: list[str]) -> Wrapped:
    """Makes a wrapper as the probes do: it counts by a nonlocal, and has a way without."""
    calls = 0

    def wrapper(self: Any, *values: Any, scale: Any = 1) -> Any:
        nonlocal calls
        if scale == 7:
            try:
                return original(self, *values, scale=scale)
            except BaseException as error:
                hide_our_frame(error)
                raise
        calls += 1
        total = len(events)  # a name that the body has, too
        try:
            return original(self, *values, scale=scale)
        except BaseException as error:
            hide_our_frame(error)
            raise
        finally:
            events.append(f"{calls} {total} {type(self).__name__}")

    return wrapper


def test_a_woven_function_does_what_both_do() -> None:
    events: list[str] = []
    woven = weave(watched(Adder.add, events), Adder.add)
    adder = Adder()
    assert [woven(adder, 1, 2), woven(adder, scale=2), woven(adder, 1, scale=7)] == [13, 20, 77]
    assert events == ["1 0 Adder", "2 1 Adder"]


def test_a_wrapper_of_any_arguments_takes_on_those_of_the_original() -> None:
    events: list[str] = []

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            events.append("done")

    original = Adder.add
    woven = weave(wrapper, original)
    assert inspect.getfullargspec(woven)[:3] == inspect.getfullargspec(original)[:3]
    assert [woven(Adder(), 1, 2), woven(Adder(), scale=2)] == [13, 20]
    assert events == ["done", "done"]


def test_it_stands_where_the_original_stands() -> None:
    woven = weave(watched(Adder.add, []), Adder.add)

    def traced(function: Wrapped) -> str:
        with pytest.raises(ValueError, match="no scale") as caught:
            function(Adder(), scale=0)
        return "".join(traceback.format_exception(caught.value)[2:])

    assert traced(woven).splitlines()[1:] == traced(Adder.add).splitlines()[1:]
    assert inspect.getsource(woven) == inspect.getsource(Adder.add)
    assert woven.__code__.co_name == "add"


def closure() -> Wrapped:
    held = 1

    def add(self: Any, *values: Any, scale: Any = 1) -> Any:
        return held

    return add


def generator(self: Any, *values: Any, scale: Any = 1) -> Iterator[int]:
    yield 1


@functools.lru_cache
def decorated(self: Any, *values: Any, scale: Any = 1) -> int:
    return 1


def other_parameters(self: Any, *values: Any) -> int:
    return 1


def without_source() -> Wrapped:
    namespace: dict[str, Any] = {}
    exec("def add(self, *values, scale=1): return 1", namespace)
    return namespace["add"]


def other_source() -> Wrapped:
    code = without_source().__code__
    own = Adder.add.__code__
    return type(closure())(
        code.replace(co_filename=own.co_filename, co_firstlineno=own.co_firstlineno), globals()
    )


@pytest.mark.parametrize(
    "original",
    [closure(), generator, decorated, other_parameters, without_source(), other_source(), len],
)
def test_what_cannot_be_woven_is_not(original: Wrapped) -> None:
    with pytest.raises(NotWoven):
        weave(watched(original, []), original)


@pytest.mark.parametrize("probe", [ForwardProbe, BackwardProbe])
def test_torchs_functions_are_woven_and_cost_no_frame(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, probe: Any
) -> None:
    monkeypatch.setenv(PURE_PYTHON, "1")
    depths = []
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda gradient: depths.append(len(inspect.stack())))

    class Deep(torch.nn.Module):
        def forward(self) -> None:
            depths.append(len(inspect.stack()))

    def run() -> list[int]:
        depths.clear()
        Deep()()
        leaf.backward()
        return list(depths)

    bare, code = run(), torch.nn.Module.__call__.__code__
    recorder.start(probe())
    assert run() == bare
    woven = torch.nn.Module.__call__.__code__
    assert (woven is not code) is (probe is ForwardProbe)
    assert woven.co_filename == code.co_filename
    assert len(recorder.read().events) == 1
