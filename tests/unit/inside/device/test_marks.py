"""Marks in the device's streams: put at phases, asked for later, never waited for."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.fake_device import FakeTensor
from support.session import FakeClock, Recorder, Recording
from support.timed_device import Device, timed_device
from torch import nn
from torch.utils.data import DataLoader

from trainprof.inside.catalogue import default_probes
from trainprof.inside.device.accelerator import may_have_device
from trainprof.inside.device.marks import DeviceMarksProbe
from trainprof.inside.session import Probe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import DeviceMarkFlag, Kind, Topic

GPU = "fakegpu"
MS = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000 * MS)


@pytest.fixture
def device(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Device:
    return timed_device(clock, monkeypatch)


def probes() -> list[Probe]:
    transfer = TransferProbe()
    transfer.plain_types.add(FakeTensor)
    sync = SyncProbe()
    sync.plain_types.add(FakeTensor)
    return [
        *(DeviceMarksProbe(), LoaderProbe(), transfer),
        *(ForwardProbe(), BackwardProbe(), sync),
    ]


class Works(nn.Module):
    """Gives the device 20 ms of work, which takes the host 1."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.device.gets(20 * MS)
        self.device.clock.advance(MS)
        return x


def marks(recording: Recording) -> list[tuple[int, int, int]]:
    """When each was put and reached, ms, and its time on the device since the one before."""
    rows: list[tuple[int, int, int]] = []
    for event in recording.of(Kind.DEVICE_MARK):
        since = int(np.uint64(event.value).astype(np.int64))
        assert (event.flags == DeviceMarkFlag.FIRST) == (not rows)
        rows.append((event.start // MS - 1000, event.end // MS - 1000, since // MS))
    return rows


def test_marks_are_put_at_phases_and_recorded_once_reached(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    torch.ones(1).to(GPU)
    module = Works(device)
    for _ in range(3):
        module(torch.ones(1))
        clock.advance(30 * MS)
    rows = marks(recorder.read())
    # Forwards begin at 0, 31 and 62; the device ends them 20 ms later, and the last is not seen.
    expected = [(0, 0), (1, 20), (31, 11), (32, 20), (62, 11)]
    assert [(put, since) for put, _, since in rows] == expected
    assert all(seen >= put for put, seen, _ in rows)
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_events_are_used_again_and_what_is_left_is_recorded_in_the_end(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock)
    torch.ones(1).to(GPU)
    module = Works(device)
    for _ in range(50):
        module(torch.ones(1))
        clock.advance(30 * MS)
    assert device.events <= 5
    module(torch.ones(1))
    clock.advance(40 * MS)
    session.on_end()
    assert marks(recorder.read())[-1] == (1551, 1591, 20)


def puts(recorder: Recorder, device: Device, clock: FakeClock) -> list[int]:
    """When marks were put so far, ms; the device does all it was given first."""
    clock.now_ns = max(clock.now_ns, device.idle_from)
    recorder.session.on_end()
    return [put for put, *_ in marks(recorder.read())]


def test_waits_for_data_and_values_and_copies_have_marks(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    x = torch.ones(1).to(GPU)
    clock.advance(10 * MS)
    batches = iter(DataLoader([1, 2, 3]))
    next(batches)
    assert puts(recorder, device, clock) == [0, 10]  # its end is as late as its beginning
    clock.advance(10 * MS)
    x.item()
    assert puts(recorder, device, clock)[2:] == [20]
    for copy in (x.cpu, lambda: x.to("cpu"), lambda: torch.ones(1).copy_(x)):
        clock.advance(10 * MS)
        copy()
    clock.advance(10 * MS)
    with pytest.raises(RuntimeError, match="support"):  # not by this device
        torch.accelerator.synchronize()
    assert puts(recorder, device, clock)[3:] == [30, 40, 50, 60]


def test_what_copies_nothing_across_has_none(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    x, y = torch.ones(1).to(GPU), torch.ones(1)
    clock.advance(10 * MS)
    x.to(torch.float64)
    x.to(GPU)
    y.to(torch.float64)
    y.to("cpu")
    y.cpu()
    y.copy_(torch.ones(1))
    y.item()
    with pytest.raises(TypeError):
        torch.Tensor.to()
    assert puts(recorder, device, clock) == [0]
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_there_are_none_before_the_script_uses_a_device_nor_under_cuda_sync(
    recorder: Recorder, device: Device
) -> None:
    recorder.start(*probes())
    Works(device)(torch.ones(1))
    assert device.events == 0
    in_catalogue = (x for x in default_probes() if x.name == "device_marks")
    session = recorder.start(*in_catalogue, options={"cuda_sync": True})
    assert session.phase_now is session.now


def test_while_a_graph_is_captured_none_is_put_and_none_asked_for(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock)
    torch.ones(1).to(GPU)
    module = Works(device)
    module(torch.ones(1))
    before = len(marks(recorder.read()))
    assert session.accelerator is not None
    session.accelerator.capturing = 1
    clock.advance(100 * MS)
    module(torch.ones(1))
    session.on_end()
    assert len(marks(recorder.read())) == before


def test_a_forked_child_asks_nothing_of_cuda_and_leaves_its_parents_events_alone(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a loader that is forked once CUDA was used: each call of it fails there."""
    parent = os.getpid()

    def is_capturing() -> bool:
        if os.getpid() != parent:
            raise RuntimeError("CUDA error: initialization error")
        return False

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: os.getpid() == parent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", is_capturing)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", device.make_event)
    session = recorder.start(*probes(), now=clock)
    Works(device)(torch.ones(1))
    made = device.events
    assert made > 0
    pid = os.fork()
    if pid == 0:
        Works(device)(torch.ones(1))
        session.on_end()
        os._exit(device.events - made + len(recorder.read().notes(Topic.PROBE_FAILED)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("version", "backend", "may"),
    [
        ({"cuda": "12.6"}, "privateuseone", True),
        ({"hip": "6.2"}, "privateuseone", True),
        ({"cuda": None}, "npu", True),
        ({"cuda": None, "hip": None}, "privateuseone", False),
    ],
)
def test_a_torch_for_the_cpu_alone_costs_nothing(
    version: dict[str, str | None], backend: str, may: bool
) -> None:
    build = SimpleNamespace(_get_privateuse1_backend_name=lambda: backend)
    fake = SimpleNamespace(version=SimpleNamespace(**version), _C=build)
    assert may_have_device(fake) is may  # type: ignore[arg-type]
