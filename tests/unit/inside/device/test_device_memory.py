"""Device memory: readings of the allocator, emptied caches, and the error that ends a run."""

from __future__ import annotations

import os
import sys
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
    EmptiedCachesProbe,
    find_reader,
    last_state,
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
    rows: list[tuple[int, dict[MemoryFigure, int]]] = []
    for event in recording.of(Kind.DEVICE_MEMORY):
        figure = MemoryFigure(event.flags)
        if figure == MemoryFigure.ALLOCATED:
            known = rows[-1][1] if rows else {}
            rows.append((event.start // MS - 1000, {**known}))
        if figure != MemoryFigure.BURST:
            rows[-1][1][figure] = event.value
    return rows


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
    allocated, peak = MemoryFigure.ALLOCATED, MemoryFigure.PEAK_ALLOCATED
    assert (before[allocated], before[peak]) == (500 * MIB, 500 * MIB)
    assert (after[allocated], after[peak]) == (540 * MIB, 600 * MIB)
    assert after[MemoryFigure.RESERVED] == after[MemoryFigure.PEAK_RESERVED] == 600 * MIB
    assert before[MemoryFigure.LIMIT] == 80 * GIB
    assert (before[MemoryFigure.RETRIES], before[MemoryFigure.OUT_OF_MEMORY]) == (2, 0)
    assert recording.notes(Topic.PROBE_FAILED) == []


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


def test_nothing_is_asked_before_a_device_is_used_nor_while_a_graph_is_captured(
    recorder: Recorder, memory: FakeAllocator, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock)
    module = Works(memory, clock)
    module(torch.ones(1))
    assert memory.asked == 0
    use_device(clock)
    module(torch.ones(1))
    asked = memory.asked
    assert session.accelerator is not None
    session.accelerator.capturing = 1
    module(torch.ones(1))
    session.on_end()
    assert memory.asked == asked > 0


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
    notes = recording.notes(Topic.ENVIRONMENT)
    (why,) = [note["no_device_memory"] for note in notes if "no_device_memory" in note]
    assert str(memory.error).partition("\n")[0] in why
    assert recording.notes(Topic.PROBE_FAILED) == []


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


# What torch offers


ALL = {
    MemoryFigure.ALLOCATED: 7 * MIB,
    MemoryFigure.RESERVED: 9 * MIB,
    MemoryFigure.PEAK_ALLOCATED: 9 * MIB,
    MemoryFigure.PEAK_RESERVED: 9 * MIB,
    MemoryFigure.RETRIES: 3,
    MemoryFigure.OUT_OF_MEMORY: 0,
}
NO_COUNTS = {figure: ALL[figure] for figure in list(ALL)[:4]}
MPS = {MemoryFigure.ALLOCATED: 5, MemoryFigure.RESERVED: 8}


@pytest.mark.parametrize(
    ("kind", "has", "figures"),
    [
        ("cuda", lambda x: {"memory_stats_as_nested_dict": x.nested, "memory_stats": None}, ALL),
        ("xpu", lambda x: {"memory_stats_as_nested_dict": x.nested}, ALL),
        ("npu", lambda x: {"memory_stats": x.flat}, ALL),
        ("accelerator", lambda x: {"memory_stats": x.flat}, ALL),
        (
            "mps",
            lambda x: {"current_allocated_memory": lambda: 5, "driver_allocated_memory": lambda: 8},
            MPS,
        ),
        (
            "cuda",
            lambda x: {
                "memory_stats_as_nested_dict": x.nested,
                "get_allocator_backend": lambda: "cudaMallocAsync",  # CUDA's own keeps no retries
            },
            NO_COUNTS,
        ),
        ("npu", lambda x: {}, None),
    ],
)
def test_what_torch_offers_by_kind_of_device(
    kind: str, has: Callable[[FakeAllocator], dict[str, Any]], figures: Any
) -> None:
    allocator = FakeAllocator()
    allocator.allocate(9 * MIB)
    allocator.free(2 * MIB)
    allocator.retries = 3
    torch_: Any = SimpleNamespace(npu=SimpleNamespace())
    setattr(torch_, kind, SimpleNamespace(**has(allocator)))
    reader = find_reader(torch_, "npu" if kind == "accelerator" else kind)
    assert (None if reader is None else reader(0)) == figures
    assert allocator.asked <= 1


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


# Emptied caches


@pytest.mark.parametrize("module", [torch.cuda, torch.xpu], ids=["cuda", "xpu"])
def test_each_call_of_empty_cache_has_its_line(recorder: Recorder, module: Any) -> None:
    recorder.start(EmptiedCachesProbe())
    module.empty_cache()
    line = sys._getframe().f_lineno - 1
    (event,) = recorder.read().of(Kind.CACHE_EMPTIED)
    assert event.line == f"test_device_memory.py:{line}"
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


# Out of memory


# As torch 2.4 to 2.13 writes them.
CUDA = (
    "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 1 has a total capacity of 93.02 GiB of "
    "which 1.18 GiB is free. Process 2752205 has 91.82 GiB memory in use. Of the allocated memory "
    "90.63 GiB is allocated by PyTorch, with 23.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 120.54 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
XPU = (
    "XPU out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 64.00 GiB of "
    "which 0 bytes is free. Of the allocated memory 63.00 GiB is allocated by PyTorch, and 0 bytes "
    "is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied "
    "cached memory."
)
OF_MPS = "MPS backend out of memory (MPS allocated: 9.05 GB). Tried to allocate 256.00 MB"


def in_a_library(error: BaseException) -> None:
    raise error


def user(error: BaseException) -> None:
    in_a_library(error)


@pytest.fixture(autouse=True)
def no_uncaught_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("last_value", "last_exc"):
        monkeypatch.delattr(sys, name, raising=False)


def state_at_end(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> dict[str, Any] | None:
    try:
        user(error)
    except BaseException as uncaught:
        monkeypatch.setattr(sys, "last_value", uncaught, raising=False)
    return last_state(lambda code: code.co_name != "in_a_library")


def test_the_sentences_of_cuda_and_xpu_are_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_at_end(monkeypatch, torch.OutOfMemoryError(CUDA)) == {
        "device": 1,
        "place": [__file__, user.__code__.co_firstlineno + 1, "user"],
        "requested_bytes": round(1.25 * GIB),
        "total_bytes": round(93.02 * GIB),
        "free_bytes": round(1.18 * GIB),
        "allocated_bytes": round(90.63 * GIB),
        "kept_bytes": round(120.54 * MIB),
    }
    state = state_at_end(monkeypatch, torch.cuda.OutOfMemoryError(XPU))
    assert state is not None
    assert (state["requested_bytes"], state["free_bytes"], state["kept_bytes"]) == (512, 0, 0)


@pytest.mark.parametrize("message", [OF_MPS, "CUDA error: out of memory", "CUDA out of memory."])
def test_what_a_sentence_does_not_have_is_not_known(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    state = state_at_end(monkeypatch, RuntimeError(message))
    assert state is not None
    assert [value for name, value in state.items() if name != "place"] == [None] * 6


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (caused(ValueError("batch too large"), torch.OutOfMemoryError(CUDA)), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError("out of memory"), False),
        (SystemExit(1), False),
        (RuntimeError(7), False),
    ],
)
def test_which_errors_count(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, counts: bool
) -> None:
    assert (state_at_end(monkeypatch, error) is not None) is counts


def test_a_rank_that_exits_by_it_counts_and_a_caught_error_does_not() -> None:
    """torch.multiprocessing makes `sys.exit(1)` of it, and our turn comes while that passes."""
    try:
        try:
            user(torch.OutOfMemoryError(CUDA))
        except Exception:
            sys.exit(1)
    except SystemExit:
        state = last_state(lambda code: True)
    assert state is not None
    assert state["device"] == 1
    assert last_state(lambda code: True) is None
