"""A device that keeps up with the host is made to wait: seldom, not long, and never waited for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.fake_device import FakeTensor
from support.session import FakeClock, Recorder, Recording
from support.timed_device import Device, timed_device
from torch import nn

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.device_backlog import (
    LITTLE_NS,
    LONGEST_NS,
    MOST_LOOKS,
    SHARE_OF_TIME,
    SHARE_WHILE_LITTLE,
    WARMUP_STEPS,
)
from trainprof.probes.device_marks import DeviceMarksProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.loader import LoaderProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.session import Probe
from trainprof.probes.sync import SyncProbe
from trainprof.probes.transfer import TransferProbe
from trainprof.record.schema import DeviceMarkFlag, Kind, Topic

GPU = "fakegpu"
US = 1_000
MS = 1_000_000
OPTIONS: dict[str, object] = {"backlog": True}
# Of a step: 3 ms to give out what the device does in 0.3.
STEP_MS = 3


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000 * MS)


@pytest.fixture
def device(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Device:
    made = timed_device(clock, monkeypatch)
    monkeypatch.setattr(type(torch.fakegpu), "_sleep", staticmethod(made.sleep), raising=False)  # type: ignore[attr-defined]
    return made


def probes() -> list[Probe]:
    transfer, sync = TransferProbe(), SyncProbe()
    for probe in (transfer, sync):
        probe.plain_types.add(FakeTensor)
    return [
        *(DeviceMarksProbe(), LoaderProbe(), transfer, ForwardProbe()),
        *(BackwardProbe(), OptimizerProbe(), sync),
    ]


class Works(nn.Module):
    """Gives the device some work in pieces, each of which takes the host a while."""

    def __init__(self, device: Device, work: int, host: int, pieces: int = 10) -> None:
        super().__init__()
        self.device, self.work, self.host, self.pieces = device, work, host, pieces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.pieces):
            self.device.clock.advance(self.host // self.pieces)
            self.device.gets(self.work // self.pieces)
        return x


class Training:
    """A loop whose steps are a forward and an update.

    Attributes:
        at_value: Takes a value of the device's to the host in mid-step: it waits for it.
    """

    def __init__(
        self, device: Device, work: int = 300 * US, host: int = STEP_MS * MS, *, wait: int = 0
    ) -> None:
        self.device, self.wait, self.at_value = device, wait, False
        self.value = torch.ones(1).to(GPU)
        self.half = Works(device, work // 2, host // 2)
        self.optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])

    def steps(self, count: int) -> None:
        clock = self.device.clock
        for _ in range(count):
            clock.advance(self.wait)
            self.half(self.value)
            if self.at_value:
                self.sync()
            self.half(self.value)
            self.optimizer.step()

    def sync(self) -> None:
        """Waits for the device; `item` itself takes no time here."""
        drain(self.device)
        self.value.item()

    def for_ms(self, ms: int) -> None:
        until = self.device.clock.now_ns + ms * MS
        while self.device.clock.now_ns < until:
            self.steps(20)


def pauses(recording: Recording) -> list[tuple[int, bool]]:
    """Returns when each began to be given out, ns, and whether it was short, to try."""
    return [
        (event.start, bool(event.flags & DeviceMarkFlag.TRIED))
        for event in recording.of(Kind.DEVICE_MARK)
        if event.flags & DeviceMarkFlag.HELD_UP
    ]


def faults(recorder: Recorder) -> list[Any]:
    return recorder.read().notes(Topic.PROBE_FAILED)


def test_a_device_that_keeps_up_is_made_to_wait_for_as_long_as_a_step_takes(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.for_ms(5_000)
    found = pauses(recorder.read())
    # The first try of all only loads the kernel.
    assert [is_try for _, is_try in found] == [True, *[True, False] * (len(found) // 2)]
    tries, looks = device.waits[1::2], device.waits[2::2]
    assert set(tries) == {100_000}
    assert len(looks) >= 2
    assert all(1.2 * STEP_MS * MS < ns < 1.4 * STEP_MS * MS for ns in looks)
    assert faults(recorder) == []


def test_the_work_behind_a_wait_is_done_without_gaps(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    Training(device).for_ms(5_000)
    marks = recorder.read().of(Kind.DEVICE_MARK)
    (look, *_) = [n for n, mark in enumerate(marks) if mark.flags == DeviceMarkFlag.HELD_UP]
    assert [mark.value for mark in marks[look + 1 : look + 3]] == [150 * US, 150 * US]
    usual = [mark.value for mark in marks[look - 60 : look - 40]]
    assert min(ns for ns in usual if ns) > MS


def test_the_script_computes_the_same(recorder: Recorder, device: Device, clock: FakeClock) -> None:
    def losses() -> list[str]:
        torch.manual_seed(0)
        training, model = Training(device), nn.Linear(4, 1)
        training.optimizer = torch.optim.Adam(model.parameters())
        found = []
        for _ in range(800):
            loss = model(torch.randn(8, 4)).square().mean()
            training.optimizer.zero_grad()
            loss.backward()
            training.steps(1)
            found.append(loss.item().hex())
        return [*found, str(torch.get_rng_state().tolist())]

    bare = losses()
    recorder.start(*probes(), now=clock, options=OPTIONS)
    assert losses() == bare
    assert len(device.waits) >= 4
    assert faults(recorder) == []


@pytest.mark.parametrize("minutes", [1, 20])
def test_it_waits_seldom_and_briefly(
    recorder: Recorder, device: Device, clock: FakeClock, minutes: int
) -> None:
    began = clock.now_ns
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device, host=40 * MS)  # too long for a wait of 1.25 times that
    training.steps(WARMUP_STEPS)
    assert device.waits == []
    waited = 0
    until = began + minutes * 60_000 * MS
    while clock.now_ns < until:
        training.steps(1)
        for ns in device.waits[waited:]:
            assert ns <= LONGEST_NS
        waited = len(device.waits)
        passed = clock.now_ns - began
        assert sum(device.waits) <= max(
            SHARE_OF_TIME * passed, min(SHARE_WHILE_LITTLE * passed, LITTLE_NS)
        )
    assert 2 <= len(device.waits) / 2 <= MOST_LOOKS


def test_however_long_the_run_there_are_not_many(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    for _ in range(60):
        training.steps(60)
        clock.advance(clock.now_ns // 4)
    assert 6 <= len(device.waits) / 2 <= MOST_LOOKS


@pytest.mark.parametrize(
    ("work", "host", "wait"),
    [
        pytest.param(9 * MS, 3 * MS, 0, id="work piles up anyway"),
        pytest.param(9 * MS, 3 * MS, 12 * MS, id="it does, and the loop waits for data"),
        pytest.param(100 * US, 300 * US, 50 * MS, id="the loop waits, and phases are short"),
    ],
)
def test_a_device_of_which_enough_is_known_is_let_alone(
    recorder: Recorder, device: Device, clock: FakeClock, work: int, host: int, wait: int
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device, work, host)
    for _ in range(2_000):
        with waiting(recorder):
            clock.advance(wait)
        training.steps(1)
    assert device.waits == []
    assert faults(recorder) == []


@contextmanager
def waiting(recorder: Recorder) -> Iterator[None]:
    """As a loader does it."""
    recorder.session.wait_now()
    yield
    recorder.session.wait_now()


def test_after_a_sync_in_mid_step_it_waits_as_well(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    """By turns: what is behind one sync cannot pile up before it."""
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.at_value = True
    training.for_ms(10_000)
    recording = recorder.read()
    syncs = [event.end for event in recording.of(Kind.SYNC)]
    updates = [event.end for event in recording.of(Kind.OPTIMIZER_STEP)]
    after = [
        max(end for end in syncs if end <= at) > max(end for end in updates if end <= at)
        for at, is_try in pauses(recording)
        if not is_try
    ]
    assert set(after) == {True, False}
    assert abs(after.count(True) - after.count(False)) <= 1
    looks = device.waits[2::2]
    assert all(0.5 * STEP_MS * MS < ns < 0.75 * STEP_MS * MS for ns in looks)


@pytest.mark.parametrize("options", [{}, {"backlog": False}])
def test_without_leave_it_never_waits(
    recorder: Recorder, device: Device, clock: FakeClock, options: dict[str, object]
) -> None:
    recorder.start(*probes(), now=clock, options=options)
    Training(device).for_ms(5_000)
    assert device.waits == []


def test_a_device_that_cannot_wait_is_told_of(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(torch.fakegpu), "_sleep")  # type: ignore[attr-defined]
    recorder.start(*probes(), now=clock, options=OPTIONS)
    Training(device).for_ms(5_000)
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    assert {"no_backlog": "torch cannot make devices of type fakegpu wait"} in notes
    assert faults(recorder) == []


def test_where_no_work_can_pile_up_it_never_waits(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    recorder.start(*probes(), now=clock, options=OPTIONS)
    Training(device).for_ms(5_000)
    assert device.waits == []
    (note,) = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "no_backlog" in x]
    assert note["no_backlog"] == "under CUDA_LAUNCH_BLOCKING=1 no work can pile up"


def test_waits_in_vain_are_given_up(recorder: Recorder, device: Device, clock: FakeClock) -> None:
    """The model waits for the device itself, in a way that nobody sees."""
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.half.register_forward_pre_hook(lambda *_: drain(device))
    training.for_ms(100_000)
    assert len(device.waits) == 1 + 2 * 3
    assert faults(recorder) == []


def drain(device: Device) -> None:
    device.clock.now_ns = max(device.clock.now_ns, device.idle_from)


def test_while_a_graph_is_captured_it_does_not_wait(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.steps(10)
    assert session.accelerator is not None
    session.accelerator.capturing = 1
    training.for_ms(5_000)
    assert device.waits == []
    session.accelerator.capturing = 0
    training.for_ms(5_000)
    assert device.waits


def test_the_scripts_own_profiler_sees_no_kernel_of_ours(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    training.for_ms(5_000)
    assert device.waits == []
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    training.for_ms(5_000)
    assert device.waits


def test_of_several_devices_none_waits(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    session = recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    assert session.accelerator is not None
    session.accelerator.saw(GPU, 1)
    training.for_ms(5_000)
    assert device.waits == []


def test_a_wait_that_fails_ends_the_waiting_alone(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cycles: int) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(type(torch.fakegpu), "_sleep", staticmethod(fail))  # type: ignore[attr-defined]
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.for_ms(5_000)
    recording = recorder.read()
    (note,) = [x for x in recording.notes(Topic.ENVIRONMENT) if "no_backlog" in x]
    assert note["no_backlog"] == "it cannot be made to wait: RuntimeError: no such kernel"
    assert faults(recorder) == []
    before = len(recording.of(Kind.DEVICE_MARK))
    training.steps(10)
    assert len(recorder.read().of(Kind.DEVICE_MARK)) > before


def test_a_device_whose_clock_makes_no_sense_waits_once(
    recorder: Recorder, device: Device, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts so slowly that the shortest wait takes seconds."""
    waits = []

    def sleep(cycles: int) -> None:
        waits.append(cycles)
        device.gets(cycles * 20 * US)

    monkeypatch.setattr(type(torch.fakegpu), "_sleep", staticmethod(sleep))  # type: ignore[attr-defined]
    recorder.start(*probes(), now=clock, options=OPTIONS)
    Training(device).for_ms(60_000)
    assert len(waits) == 1


def test_only_the_thread_that_steps_makes_it_wait(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    """Without updates nothing tells where a step begins."""
    recorder.start(*probes(), now=clock, options=OPTIONS)
    half = Works(device, 150 * US, MS)
    value = torch.ones(1).to(GPU)
    for _ in range(2_000):
        half(value)
        with waiting(recorder):
            clock.advance(US)
    assert device.waits == []


def test_a_forked_child_makes_its_parents_device_not_wait(
    recorder: Recorder, device: Device, clock: FakeClock
) -> None:
    recorder.start(*probes(), now=clock, options=OPTIONS)
    training = Training(device)
    training.steps(10)
    pid = os.fork()
    if pid == 0:
        training.half(training.value)
        training.optimizer.step()
        os._exit(len(device.waits))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
