"""Signal handlers of the script's run wherever Python code does: in ours too."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as pinning

from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Probe
from trainprof.inside.spans.collective import CollectiveProbe
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.garbage_collection import MIN_PAUSE_NS, GarbageProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import Kind, Topic


class Late(Exception):
    """What the script's handler raises."""


@dataclass(frozen=True)
class Frozen(Exception):
    """One whose attributes, its traceback included, cannot be set."""

    text: str


class Handler:
    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.calls = error, 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        raise self.error("now")

    def method(self, *arguments: Any) -> None:
        self(*arguments)


@pytest.fixture(params=["object", "method", "partial"])
def handle(request: pytest.FixtureRequest) -> Iterator[Callable[[type[BaseException]], Handler]]:
    before = signal.getsignal(signal.SIGALRM)

    def install(error: type[BaseException]) -> Handler:
        made = Handler(error)
        forms = {"object": made, "method": made.method, "partial": functools.partial(made, 1)}
        signal.signal(signal.SIGALRM, forms[request.param])
        return made

    yield install
    signal.signal(signal.SIGALRM, before)


class Interrupting(FakeClock):
    """A clock at which, once, a signal comes in."""

    is_armed = False

    def __call__(self) -> int:
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGALRM)
        self.advance(MIN_PAUSE_NS)
        return super().__call__()


class Marking(FakeClock):
    """A clock in Python, as that of a device's phases is; a signal comes in at one reading."""

    readings_left = 0

    def __call__(self) -> int:
        if self.readings_left:
            self.readings_left -= 1
            if not self.readings_left:
                signal.raise_signal(signal.SIGALRM)
        self.advance(10)
        return super().__call__()


def collect_on() -> None:
    for _ in range(3):
        gc.collect()


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt, Frozen])
def test_what_it_raises_in_a_collection_reaches_the_script(
    recorder: Recorder,
    handle: Callable[[type[BaseException]], Handler],
    error: type[BaseException],
) -> None:
    clock, handler = Interrupting(), handle(error)
    session = recorder.start(GarbageProbe(), now=clock)
    session.emit(Kind.BACKWARD, 1, 2)
    installed = list(gc.callbacks)
    clock.is_armed = True
    with pytest.raises(error, match="now"):
        collect_on()
    assert handler.calls == 1
    assert gc.callbacks == installed
    gc.collect(1)
    recording = recorder.read()
    assert recording.of(Kind.GC)[-1].value == 1  # and pauses are recorded as before
    assert recording.notes(Topic.PROBE_FAILED) == []


@dataclass(frozen=True)
class Outermost:
    """A call of which only the outermost of a thread is recorded."""

    kind: Kind
    probes: Callable[[], list[Probe]]
    call: Callable[[], Any]


def of_loader() -> list[Probe]:
    loader = LoaderProbe()
    return [loader, DeliveryProbe(loader)]


MODEL, INPUT = nn.Linear(2, 2), torch.zeros(1, 2)
NUMBERS: Any = DataLoader([1, 2])  # type: ignore[arg-type]
OUTERMOST = (
    Outermost(Kind.FORWARD, lambda: [ForwardProbe()], lambda: MODEL(INPUT)),
    Outermost(Kind.PLACEMENT, lambda: [TransferProbe()], lambda: MODEL.to(torch.float32)),
    Outermost(Kind.COLLECTIVE, lambda: [CollectiveProbe()], lambda: dist.all_reduce(INPUT)),
    Outermost(Kind.PIN, of_loader, lambda: pinning.pin_memory([1])),
    Outermost(Kind.LOADER_PASS, of_loader, lambda: iter(NUMBERS)),
)


@pytest.mark.parametrize("reading", [1, 2])
@pytest.mark.parametrize("outermost", OUTERMOST, ids=lambda one: one.kind.name)
def test_what_it_raises_at_a_clock_leaves_no_thread_inside(
    recorder: Recorder,
    handle: Callable[[type[BaseException]], Handler],
    outermost: Outermost,
    reading: int,
) -> None:
    clock = Marking()
    recorder.start(*outermost.probes(), now=clock)
    with suppress(ValueError):  # without a process group
        outermost.call()
    handle(KeyboardInterrupt)
    clock.readings_left = reading
    with pytest.raises(KeyboardInterrupt):
        outermost.call()
    before = len(recorder.read().of(outermost.kind))
    for _ in range(3):
        with suppress(ValueError):
            outermost.call()
    recording = recorder.read()
    assert len(recording.of(outermost.kind)) == before + 3
    assert recording.notes(Topic.PROBE_FAILED) == []


def test_what_it_raises_in_a_callback_of_ours_is_no_fault_of_ours(
    handle: Callable[[type[BaseException]], Handler],
) -> None:
    faults: list[BaseException] = []
    patcher = Patcher("test", lambda _, error: faults.append(error), lambda *_: None)
    handle(Late)
    with pytest.raises(Late):
        patcher.guarded(lambda: signal.raise_signal(signal.SIGALRM))()
    assert faults == []
    assert not patcher.is_silent


def test_the_same_exception_raised_by_us_is_our_fault(
    handle: Callable[[type[BaseException]], Handler],
) -> None:
    faults: list[BaseException] = []
    patcher = Patcher("test", lambda _, error: faults.append(error), lambda *_: None)
    handle(Late)

    def ours() -> None:
        raise Late("ours")

    patcher.guarded(ours)()
    assert [str(error) for error in faults] == ["ours"]
    assert patcher.is_silent
