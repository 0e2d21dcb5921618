"""Readings of the allocator: at ends of phases, seldom enough, and without a trace of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.fake_device import FakeTensor
from support.fake_memory import GIB, MIB, FakeAllocator
from support.session import FakeClock, Recorder, Recording
from torch import nn

from trainprof.inside.device.marks import DeviceMarksProbe
from trainprof.inside.device.memory import (
    BURST,
    FIRST_BURST,
    SHARE_OF_TIME,
    SHORTEST_PAUSE_NS,
    DeviceMemoryProbe,
    find_reader,
    limit_of,
)
from trainprof.inside.session import Probe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import Kind, MemoryFigure, Topic

GPU = "fakegpu"
MS = 1_000_000
READING_NS = 50_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000 * MS)


@pytest.fixture
def memory(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    """The fake device's allocator; asking it takes a while."""
    fake_device.register()
    made = FakeAllocator()
    module = torch.fakegpu  # type: ignore[attr-defined]

    def nested(index: int) -> dict[str, Any]:
        assert index == 0
        clock.advance(READING_NS)
        return made.nested()

    monkeypatch.setattr(module, "memory_stats_as_nested_dict", nested, raising=False)
    properties = SimpleNamespace(total_memory=made.total)
    monkeypatch.setattr(module, "get_device_properties", lambda index: properties, raising=False)
    event = SimpleNamespace(record=lambda: None, query=lambda: False)
    monkeypatch.setattr(module, "Event", lambda **_: event, raising=False)
    return made


def probes() -> list[Probe]:
    transfer = TransferProbe()
    transfer.plain_types.add(FakeTensor)
    return [DeviceMarksProbe(), DeviceMemoryProbe(), transfer, ForwardProbe(), BackwardProbe()]


class Works(nn.Module):
    """Has 100 MiB for a moment, and keeps 40 of them."""

    def __init__(self, memory: FakeAllocator, clock: FakeClock) -> None:
        super().__init__()
        self.memory, self.clock = memory, clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.allocate(100 * MIB)
        self.clock.advance(MS)
        self.memory.free(60 * MIB)
        return x


def readings(recording: Recording) -> list[tuple[int, dict[MemoryFigure, int]]]:
    """When each was made, ms, and all that was known then."""
    found: list[tuple[int, dict[MemoryFigure, int]]] = []
    for event in recording.of(Kind.DEVICE_MEMORY):
        figure = MemoryFigure(event.flags)
        if figure == MemoryFigure.ALLOCATED:
            known = found[-1][1] if found else {}
            found.append((event.start // MS - 1000, {**known}))
        if figure != MemoryFigure.BURST:
            found[-1][1][figure] = event.value
    return found


def use_device(clock: FakeClock) -> None:
    torch.ones(1).to(GPU)
    clock.advance(2 * MS)


def test_the_same_with_and_without(
    same_with_us: Callable[..., Any], memory: FakeAllocator, clock: FakeClock
) -> None:
    def work() -> Any:
        x = torch.ones(2, requires_grad=True)
        x.detach().to(GPU)
        Works(memory, clock)(x).sum().backward()
        return x.grad

    assert same_with_us(work, *probes())[0] == "returned"


def test_what_the_allocator_says_is_recorded_at_the_ends_of_phases(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    memory.allocate(500 * MIB)
    use_device(clock)
    memory.retries = 2
    Works(memory, clock)(torch.ones(1))
    recording = recorder.read()
    (at, before), (later, after) = readings(recording)[-2:]
    forward = recording.of(Kind.FORWARD)[0]
    assert [at, later] == [forward.start // MS - 1000, forward.end // MS - 1000]
    # The statistic went up in the forward: that one set the peak.
    assert (before[MemoryFigure.ALLOCATED], before[MemoryFigure.PEAK_ALLOCATED]) == (
        500 * MIB,
        500 * MIB,
    )
    assert (after[MemoryFigure.ALLOCATED], after[MemoryFigure.PEAK_ALLOCATED]) == (
        540 * MIB,
        600 * MIB,
    )
    assert after[MemoryFigure.RESERVED] == after[MemoryFigure.PEAK_RESERVED] == 600 * MIB
    assert before[MemoryFigure.LIMIT] == 80 * GIB
    assert (before[MemoryFigure.RETRIES], before[MemoryFigure.OUT_OF_MEMORY]) == (2, 0)
    assert recording.notes(Topic.PROBE_FAILED) == []


def test_only_what_changed_is_written_but_always_what_is_allocated(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    for _ in range(3):
        nn.Identity()(torch.ones(1))
    written = [MemoryFigure(event.flags) for event in recorder.read().of(Kind.DEVICE_MEMORY)]
    assert written[:2] == [MemoryFigure.BURST, MemoryFigure.ALLOCATED]
    assert set(written) == set(MemoryFigure)
    assert written[-4:] == [MemoryFigure.ALLOCATED] * 4


def test_before_the_script_uses_a_device_nothing_is_asked(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    for _ in range(3):
        Works(memory, clock)(torch.ones(1))
    assert memory.asked == 0


@pytest.mark.parametrize("phase_ms", [1, 100])
def test_readings_take_no_more_than_their_share(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock, phase_ms: int
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    began, module = clock.now_ns, nn.Identity()
    for _ in range(20_000 // phase_ms):
        module(torch.ones(1))
        clock.advance(phase_ms * MS)
    at_first = FIRST_BURST * READING_NS
    spent = memory.asked * READING_NS - at_first
    passed = clock.now_ns - began
    assert 0 < spent <= passed * SHARE_OF_TIME + BURST * READING_NS
    assert spent <= (passed / SHORTEST_PAUSE_NS + 1) * BURST * READING_NS


def test_bursts_begin_with_a_whole_reading(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    module = nn.Identity()
    for _ in range(FIRST_BURST):
        module(torch.ones(1))
    clock.advance(10 * SHORTEST_PAUSE_NS)
    module(torch.ones(1))
    rows = recorder.read().of(Kind.DEVICE_MEMORY)
    flags = [MemoryFigure(row.flags) for row in rows]
    assert flags.count(MemoryFigure.BURST) == 2
    second = len(flags) - 1 - flags[::-1].index(MemoryFigure.BURST)
    assert flags[:second].count(MemoryFigure.ALLOCATED) == FIRST_BURST
    assert set(flags[second:]) == set(MemoryFigure)


def test_statistics_stay_and_what_the_script_resets_is_read_before(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = memory.reset_peak_memory_stats  # what is wrapped does not know which device it is of
    for owner in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(owner, "reset_peak_memory_stats", reset)
    recorder.start(*probes(), now=clock)
    use_device(clock)
    Works(memory, clock)(torch.ones(1))
    assert memory.peak == 100 * MIB
    memory.allocate(300 * MIB)
    memory.free(300 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert memory.peak == 40 * MIB
    last = readings(recorder.read())[-1][1]
    assert last[MemoryFigure.PEAK_ALLOCATED] == 340 * MIB


def test_while_a_graph_is_captured_nothing_is_asked(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock)
    use_device(clock)
    module = Works(memory, clock)
    module(torch.ones(1))
    asked = memory.asked
    assert session.accelerator is not None
    session.accelerator.capturing = 1
    module(torch.ones(1))
    for finish in session.at_end:
        finish()
    assert memory.asked == asked


def test_an_allocator_that_does_not_tell_is_not_asked_again(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    memory.error = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.\nx")
    for _ in range(FIRST_BURST):
        Works(memory, clock)(torch.ones(1))
    assert memory.asked == 1
    recording = recorder.read()
    assert {
        "no_device_memory": "its allocator does not tell: "
        "CUDAPluggableAllocator does not yet support getDeviceStats."
    } in recording.notes(Topic.ENVIRONMENT)
    assert recording.notes(Topic.PROBE_FAILED) == []


def test_a_fault_of_ours_silences_the_readings_alone(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    memory.error = LookupError("ours")
    for _ in range(2):
        Works(memory, clock)(torch.ones(1))
    recording = recorder.read()
    assert len(recording.of(Kind.FORWARD)) == 2
    (fault,) = recording.notes(Topic.PROBE_FAILED)
    assert fault["probe"] == "device_memory"


def test_a_forked_child_leaves_its_parents_device_alone(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock)
    use_device(clock)
    Works(memory, clock)(torch.ones(1))
    asked = memory.asked
    assert asked
    pid = os.fork()
    if pid == 0:
        clock.advance(10 * SHORTEST_PAUSE_NS)
        Works(memory, clock)(torch.ones(1))
        os._exit(memory.asked - asked)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# What torch offers, by kind of device; it is found by name alone.


def reads(**modules: Any) -> dict[MemoryFigure, int] | None:
    (kind,) = [name for name in modules if name != "accelerator"]
    reader = find_reader(SimpleNamespace(**modules), kind)  # type: ignore[arg-type]
    return None if reader is None else reader(0)


@pytest.fixture
def used() -> FakeAllocator:
    allocator = FakeAllocator()
    allocator.allocate(9 * MIB)
    allocator.free(2 * MIB)
    allocator.retries = 3
    return allocator


ALL = {
    MemoryFigure.ALLOCATED: 7 * MIB,
    MemoryFigure.RESERVED: 9 * MIB,
    MemoryFigure.PEAK_ALLOCATED: 9 * MIB,
    MemoryFigure.PEAK_RESERVED: 9 * MIB,
    MemoryFigure.RETRIES: 3,
    MemoryFigure.OUT_OF_MEMORY: 0,
}


def test_cuda_and_xpu_give_all_in_one_call(used: FakeAllocator) -> None:
    for kind in ("cuda", "xpu"):
        module = SimpleNamespace(memory_stats_as_nested_dict=used.nested, memory_stats=pytest.fail)
        assert reads(**{kind: module}) == ALL
    assert used.asked == 2


def test_devices_from_elsewhere_give_them_flat(used: FakeAllocator) -> None:
    assert reads(npu=SimpleNamespace(memory_stats=used.flat)) == ALL
    accelerator = SimpleNamespace(memory_stats=used.flat)
    assert reads(npu=SimpleNamespace(), accelerator=accelerator) == ALL


def test_mps_tells_what_is_and_no_more() -> None:
    module = SimpleNamespace(current_allocated_memory=lambda: 5, driver_allocated_memory=lambda: 8)
    assert reads(mps=module) == {MemoryFigure.ALLOCATED: 5, MemoryFigure.RESERVED: 8}


def test_cudas_own_allocator_keeps_no_retries(used: FakeAllocator) -> None:
    module = SimpleNamespace(
        memory_stats_as_nested_dict=used.nested, get_allocator_backend=lambda: "cudaMallocAsync"
    )
    found = reads(cuda=module)
    assert found is not None
    assert found.keys() == {
        MemoryFigure.ALLOCATED,
        MemoryFigure.RESERVED,
        MemoryFigure.PEAK_ALLOCATED,
        MemoryFigure.PEAK_RESERVED,
    }


def test_where_torch_tells_nothing_there_is_no_reader() -> None:
    assert reads(npu=SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("module", "limit"),
    [
        ({"get_device_properties": lambda i: SimpleNamespace(total_memory=80)}, 80),
        (
            {
                "get_device_properties": lambda i: SimpleNamespace(total_memory=80),
                "get_per_process_memory_fraction": lambda i: 0.5,
            },
            40,
        ),
        ({"recommended_max_memory": lambda: 30}, 30),
        ({"get_device_properties": lambda i: SimpleNamespace()}, None),
        ({}, None),
    ],
)
def test_what_the_process_may_take(module: dict[str, Any], limit: int | None) -> None:
    fake: Any = SimpleNamespace(npu=SimpleNamespace(**module))
    assert limit_of(fake, "npu", 0) == limit
