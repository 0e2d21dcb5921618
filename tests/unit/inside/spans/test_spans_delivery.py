"""How batches come from workers, and what becomes of the workers."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from support.loaders import Numbers, loader_probes
from support.session import Recorder
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from trainprof.inside.session import Session
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag, Topic

Compare = Callable[..., Any]
LOW_BITS = (1 << RECEIVE_CPU_SHIFT) - 1


class Deadly(Numbers):
    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_each_next_is_split(recorder: Recorder) -> None:
    recorder.start(*loader_probes(DeliveryProbe))
    list(DataLoader(Numbers()))  # without workers there is nothing to split
    assert recorder.read().of(Kind.NEXT_PARTS, Kind.WORKER) == []
    calls_before = len(recorder.read().of(Kind.LOADER_NEXT))
    assert len(list(DataLoader(Numbers(), batch_size=2, num_workers=1))) == 3
    recording = recorder.read()
    parts, calls = recording.of(Kind.NEXT_PARTS), recording.of(Kind.LOADER_NEXT)[calls_before:]
    assert len(parts) == len(calls) == 3
    for part, call in zip(parts, calls, strict=True):
        assert part.text["kind"] == "DataLoader"
        received_ns, cpu_us = part.value & LOW_BITS, part.value >> RECEIVE_CPU_SHIFT
        assert part.flags == NextPartsFlag.CPU_KNOWN
        assert call.start <= part.start
        assert 0 < part.ns + received_ns <= call.ns
        assert cpu_us * 1000 <= part.ns + received_ns


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_known_by_pid(recorder: Recorder, method: str) -> None:
    recorder.start(*loader_probes(DeliveryProbe))
    loader = DataLoader(Numbers(), num_workers=2, multiprocessing_context=method)
    batches = iter(loader)
    pids = [worker.pid for worker in batches._workers]
    recording = recorder.read()
    del batches
    workers, [created] = recording.of(Kind.WORKER), recording.of(Kind.LOADER_INIT)
    assert [(e.value, e.flags, e.text["num_workers"]) for e in workers] == [
        (pids[0], 1, 2),
        (pids[1], 2, 2),
    ]
    assert all(e.start <= created.start <= e.end for e in workers)


def test_an_iterator_class_that_inherits_counts_once_and_dies(recorder: Recorder) -> None:
    loader = LoaderProbe()
    delivery = DeliveryProbe(loader)
    recorder.start(loader, delivery)
    base = torch_dataloader._MultiProcessingDataLoaderIter

    class Own(base):  # type: ignore[valid-type, misc]
        def _try_put_index(self) -> None:
            super()._try_put_index()

    batches = Own(DataLoader(Numbers(), batch_size=2, num_workers=1))
    assert len(list(batches)) == 3
    recording = recorder.read()
    assert len(recording.of(Kind.NEXT_PARTS)) == len(recording.of(Kind.SAMPLER)) == 3
    assert recording.notes(Topic.PROBE_FAILED) == []
    alive = weakref.ref(batches)
    assert len(delivery._parts) == 1
    gc.disable()
    try:
        del batches
        assert alive() is None
    finally:
        gc.enable()
    assert delivery._parts == {}


class Pinnable:
    def __init__(self, pinned: list[int], number: int) -> None:
        self.pinned, self.number = pinned, number

    def pin_memory(self) -> int:
        self.pinned.append(self.number)
        return self.number


def test_a_batch_is_pinned_once_with_all_that_is_in_it(recorder: Recorder) -> None:
    recorder.start(*loader_probes(DeliveryProbe))
    pinned: list[int] = []
    batch = {"x": [Pinnable(pinned, 1), (Pinnable(pinned, 2), "word")], "y": Pinnable(pinned, 3)}
    assert torch.utils.data._utils.pin_memory.pin_memory(batch) == {"x": [1, (2, "word")], "y": 3}
    assert pinned == [1, 2, 3]
    assert len(recorder.read().of(Kind.PIN)) == 1


def test_a_worker_that_is_killed_looks_the_same(same_with_us: Compare, recorder: Recorder) -> None:
    def epoch() -> Any:
        try:
            list(DataLoader(Deadly(), num_workers=1))
        except RuntimeError as error:
            # Which of them torch says is a race of its own: between its signal and its next look.
            return "killed by signal" in str(error) or "exited unexpectedly" in str(error)

    assert same_with_us(epoch) == ("returned", True)
    lost = recorder.read().of(Kind.WORKER_LOST)
    assert {(e.flags, e.value >> 32) for e in lost} == {(1, 0x10000 - signal.SIGKILL)}


def test_a_worker_that_dies_in_the_loop(same_with_us: Compare, recorder: Recorder) -> None:
    def epoch() -> str:
        batches = iter(DataLoader(Numbers(), num_workers=1))
        pid = batches._workers[0].pid
        try:
            os.kill(pid, signal.SIGKILL), os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except RuntimeError:
            return traceback.format_exc().replace(str(pid), "PID")
        raise AssertionError("nobody noticed")

    kind, text = same_with_us(epoch)
    assert kind == "returned"
    assert "(pid PID) is killed by signal: Killed" in text
    assert [e.flags for e in recorder.read().of(Kind.WORKER_LOST)] == [1]


def test_an_exception_in_a_worker_is_no_loss(same_with_us: Compare, recorder: Recorder) -> None:
    class Failing(Numbers):
        def __getitem__(self, index: int) -> int:
            raise LookupError(f"no sample {index}")

    kind, text = same_with_us(lambda: list(DataLoader(Failing(), num_workers=1)))
    assert (kind, "LookupError in DataLoader worker process 0" in text) == ("raised", True)
    assert recorder.read().of(Kind.WORKER_LOST) == []


# What is kept track of


class Thing:
    pass


@pytest.fixture
def session(recorder: Recorder) -> Session:
    return recorder.start()


def test_what_is_gone_leaves_the_table_and_nothing_of_ours_runs(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, seen, raised = {1: "gone", 2: "two", 4: "kept"}, [], []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)

    def trace(frame: FrameType, event: str, argument: object) -> None:
        seen.append(frame.f_code.co_filename)

    thing, other, third = Thing(), Thing(), Thing()
    session.keep_track(thing, table, 1)
    session.keep_track(third, table, 3)  # a key that is gone already is no fault
    assert session.keep_track(other, table, 2) is True
    assert session.keep_track([], table, 4) is False  # what cannot be watched stays
    sys.settrace(trace)
    try:
        del thing, third
    finally:
        sys.settrace(None)
    assert (table, seen, raised) == ({2: "two", 4: "kept"}, [], [])
