"""What is recorded of garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.session import FakeClock, Recorder

from trainprof.inside.spans.garbage_collection import MIN_PAUSE_NS, GarbageProbe
from trainprof.record.schema import Kind, Topic


class Ticking(FakeClock):
    def __init__(self, ns: int) -> None:
        super().__init__()
        self.ns = ns

    def __call__(self) -> int:
        self.advance(self.ns)
        return self.now_ns


class Broken(FakeClock):
    is_broken = False

    def __call__(self) -> int:
        if self.is_broken:
            raise ZeroDivisionError("ours")
        return super().__call__()


@pytest.fixture(autouse=True)
def no_collections_but_ours() -> Any:
    gc.disable()
    yield
    gc.enable()


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    while gc.collect():  # what earlier tests left
        pass
    assert same_with_us(gc.collect, GarbageProbe()) == ("returned", 0)


@pytest.mark.parametrize("is_long", [True, False])
def test_long_pauses_are_recorded(recorder: Recorder, is_long: bool) -> None:
    clock = Ticking(MIN_PAUSE_NS) if is_long else FakeClock()
    session = recorder.start(GarbageProbe(), now=clock)
    gc.collect(1)
    assert not session.log.is_open  # a pause alone opens no log
    session.emit(Kind.BACKWARD, 1, 2)
    gc.collect(1)
    pauses = recorder.read().of(Kind.GC)
    assert [(pause.value, pause.ns >= MIN_PAUSE_NS) for pause in pauses] == [(1, True)] * is_long


def test_a_fault_of_ours_harms_nothing(recorder: Recorder) -> None:
    clock = Broken()
    recorder.start(GarbageProbe(), now=clock)
    clock.is_broken = True
    gc.collect()
    gc.collect()
    assert len(recorder.read().notes(Topic.PROBE_FAILED)) == 1
