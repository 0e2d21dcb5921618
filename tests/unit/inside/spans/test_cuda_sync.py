"""What --cuda-sync does: phases begin and end when the device is done, and nothing is touched."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.fake_device import transfer_probe
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.session import Probe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.cuda_sync import SynchronizeProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Kind, Topic

GPU = "fakegpu"
US = 1_000


class FakeTorch(SimpleNamespace):
    """A torch whose devices say that they were waited for."""

    def __init__(self, *, initialized: tuple[str, ...] = (), capturing: bool = False) -> None:
        self.waited: list[tuple[str, int | None]] = []
        super().__init__(
            cuda=self._module("cuda", initialized, is_current_stream_capturing=lambda: capturing),
            xpu=self._module("xpu", initialized),
            accelerator=SimpleNamespace(synchronize=self._wait("accelerator")),
            npu=SimpleNamespace(is_initialized=lambda: "npu" in initialized),
            _C=SimpleNamespace(_get_privateuse1_backend_name=lambda: "npu"),
        )

    def _module(self, name: str, initialized: tuple[str, ...], **more: Any) -> SimpleNamespace:
        return SimpleNamespace(
            is_initialized=lambda: name in initialized, synchronize=self._wait(name), **more
        )

    def _wait(self, name: str) -> Callable[..., None]:
        return lambda index=None: self.waited.append((name, index))


@pytest.mark.parametrize(
    ("begun_with", "capturing", "seen", "waited"),
    [
        ((), False, [], []),  # a device that the script has not begun with is left alone
        (("xpu",), False, [], [("xpu", None)]),
        (("npu",), False, [], [("accelerator", None)]),
        (("cuda",), False, [1, 0], [("cuda", 0), ("cuda", 1)]),
        (("cuda",), True, [], []),  # nothing while a graph is captured
    ],
)
def test_what_the_script_has_begun_with_is_waited_for(
    begun_with: tuple[str, ...], capturing: bool, seen: list[int], waited: list[Any]
) -> None:
    fake = FakeTorch(initialized=begun_with, capturing=capturing)
    accelerator = Accelerator(fake)  # type: ignore[arg-type]
    for index in seen:
        accelerator.saw("cuda", index)
    # What waits is torch's own function before anybody wrapped it.
    fake.cuda.synchronize = lambda: pytest.fail("a wrapper was called")
    assert accelerator.synchronize() is bool(waited)
    assert fake.waited == waited


class Device:
    """The fake device: what it was given takes until it is waited for."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.pending_ns, self.waits = clock, 0, 0
        self.error: Exception | None = None

    def synchronize(self, device: object = None) -> None:
        self.waits += 1
        self.clock.advance(self.pending_ns)
        self.pending_ns = 0
        if self.error is not None:
            raise self.error

    def gets(self, ns: int) -> Callable[..., Any]:
        def work(*args: Any) -> None:
            self.pending_ns += ns

        return work


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def device(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Device:
    fake_device.register()
    made = Device(clock)
    monkeypatch.setattr(torch.fakegpu, "synchronize", made.synchronize)  # type: ignore[attr-defined]
    return made


def probes() -> list[Probe]:
    spans = [transfer_probe(), ForwardProbe(), BackwardProbe(), OptimizerProbe()]
    return [SynchronizeProbe(), *spans]


def train(device: Device) -> torch.Tensor:
    """A step of which copying takes the device 10 us, then 20, 30, and the update 40."""
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hooks = [
        net.register_forward_hook(device.gets(20 * US)),
        net.weight.register_hook(device.gets(30 * US)),
        optimizer.register_step_post_hook(device.gets(40 * US)),
    ]
    x = torch.ones(3, 2)
    device.gets(10 * US)()
    x.to(GPU)
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    for hook in hooks:
        hook.remove()
    return net.weight.detach()


@pytest.fixture
def started(recorder: Recorder, device: Device, clock: FakeClock) -> Recorder:
    recorder.start(*probes(), now=clock, options={"cuda_sync": True})
    torch.ones(1).to(GPU)  # from here on the device is known to be used
    return recorder


def test_phases_take_the_devices_time(started: Recorder, device: Device, clock: FakeClock) -> None:
    for _ in range(2):
        train(device)
        clock.advance(60_000 * US)
    recording = started.read()
    assert [e.ns for e in recording.of(Kind.FORWARD)] == [20 * US] * 2
    assert [e.ns for e in recording.of(Kind.BACKWARD)] == [30 * US] * 2
    assert [e.ns for e in recording.of(Kind.OPTIMIZER_STEP)] == [40 * US] * 2
    assert {"device": "fakegpu:0"} in recording.notes(Topic.ENVIRONMENT)
    # What was waited is recorded once in 50 ms: at the second step's first wait, for its copy.
    last = recording.of(Kind.SYNCHRONIZED)[-1]
    assert last.ns == (100 + 10) * US
    assert 0 < last.value < device.waits


def test_without_the_option_nothing_is_waited_for(
    same_with_us: Callable[..., Any], recorder: Recorder, device: Device
) -> None:
    assert same_with_us(lambda: train(device), *probes())[0] == "returned"
    assert device.waits == 0
    assert recorder.read().of(Kind.SYNCHRONIZED) == []


def test_the_scripts_own_errors_are_not_raised_by_us(started: Recorder, device: Device) -> None:
    device.error = RuntimeError("device-side assert triggered")
    train(device)
    recording = started.read()
    assert len(recording.of(Kind.OPTIMIZER_STEP)) == 1
    assert recording.notes(Topic.PROBE_FAILED) == []


def test_after_a_fault_of_ours_nothing_is_waited_for(started: Recorder, device: Device) -> None:
    device.error = LookupError("gone")
    train(device)
    before = device.waits
    train(device)
    assert device.waits == before
    assert started.read().notes(Topic.PROBE_FAILED) == [
        {"probe": "cuda_sync", "error": "LookupError: gone"}
    ]


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def capture_begin(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("no pool")

    def capture_end(self) -> None:
        return None


def test_captures_are_counted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    session = recorder.start(SynchronizeProbe(), options={"cuda_sync": True})
    accelerator = session.accelerator
    assert accelerator is not None
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin()
    assert accelerator.capturing == 1
    graph.capture_end()
    with pytest.raises(ValueError, match="no pool"):
        graph.capture_begin(fails=True)
    assert accelerator.capturing == 0


def test_launch_blocking_is_noted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    recorder.start(SynchronizeProbe())
    assert {"launch_blocking": True} in recorder.read().notes(Topic.ENVIRONMENT)
