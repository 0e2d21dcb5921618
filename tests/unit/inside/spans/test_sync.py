"""What is recorded of calls that wait for a value."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder

from trainprof.inside.spans.sync import TENSOR_CALLS, SyncProbe, _Chain
from trainprof.record.hot import PURE_PYTHON
from trainprof.record.schema import Kind, SyncFlag, Topic

CALLS: list[tuple[Callable[[Any], Any], SyncFlag]] = [
    (lambda t: t.item(), SyncFlag.ITEM),
    (lambda t: t.tolist(), SyncFlag.TOLIST),
    (lambda t: t.numpy().tolist(), SyncFlag.NUMPY),
    (lambda t: t.nonzero(), SyncFlag.NONZERO),
    (bool, SyncFlag.BOOL),
    (float, SyncFlag.FLOAT),
    (int, SyncFlag.INT),
    (operator.index, SyncFlag.INDEX),
]


def test_each_call_on_a_host_tensor_is_counted(recorder: Recorder) -> None:
    recorder.start(SyncProbe())
    for call, _ in CALLS:
        call(torch.tensor(3))
    if torch.tensor(1) > 0:
        line = sys._getframe().f_lineno - 1
    *events, last = recorder.read().of(Kind.SYNC)
    assert [event.flags for event in events] == [flag | SyncFlag.ON_CPU for _, flag in CALLS]
    assert {event.text[0] for event in events} == {__file__}
    assert (last.flags, last.line) == (SyncFlag.BOOL | SyncFlag.ON_CPU, f"test_sync.py:{line}")


def test_torchs_own_calls_on_host_tensors_are_left_out(recorder: Recorder) -> None:
    recorder.start(SyncProbe())
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    torch.optim.Adam([p], foreach=False).step()
    repr(p)
    assert recorder.read().of(Kind.SYNC) == []


READS = 50_000


@pytest.mark.parametrize(
    ("has_device", "apart_ns"), [(False, 10_000), (True, 10_000), (True, 60_000)]
)
def test_thousands_of_reads_a_step_are_counted_for_a_while(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, has_device: bool, apart_ns: int
) -> None:
    monkeypatch.setattr("trainprof.inside.spans.sync.may_have_device", lambda torch: has_device)
    before, flag = torch.Tensor.__float__, SyncFlag.FLOAT
    recorder.start(SyncProbe(), now=itertools.count(step=apart_ns).__next__)
    value = torch.tensor(3.0)
    assert sum(float(value) for _ in range(READS + 100)) == 3.0 * (READS + 100)
    value.item()
    # On a host alone nothing of ours is left; what a device's values cost is still told.
    assert (torch.Tensor.__float__ is before) is not has_device
    with pytest.raises(RuntimeError):
        float(torch.ones(1, device="meta"))
    recording, are_close = recorder.read(), apart_ns < 50_000
    kept = [event.flags for event in recording.of(Kind.SYNC)]
    assert kept.count(flag | SyncFlag.ON_CPU) == (READS if are_close else READS + 100)
    assert kept.count(SyncFlag.ITEM | SyncFlag.ON_CPU) == 1
    assert kept.count(flag) == has_device
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "reads_counted_until" in x]
    assert [note["flag"] for note in notes] == [flag] * are_close


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(("call", "flag"), CALLS)
def test_a_method_is_taken_back_unless_the_script_keeps_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, call: Any, flag: SyncFlag, is_kept: bool
) -> None:
    monkeypatch.setattr("trainprof.inside.spans.sync.may_have_device", lambda torch: False)
    [name] = [name for name, of in TENSOR_CALLS.items() if of == flag]
    bare = getattr(torch.Tensor, name)
    recorder.start(SyncProbe(), now=itertools.count(step=10_000).__next__)
    # As in a table of __torch_function__.
    kept = [getattr(torch.Tensor, name)] if is_kept else []
    assert getattr(torch.Tensor, name) is not bare
    value = torch.tensor(3)
    for _ in range(READS + 100):
        call(value)
    assert getattr(torch.Tensor, name) is (kept[0] if is_kept else bare)
    assert all(pickle.loads(pickle.dumps(method)) is method for method in kept)
    assert len(recorder.read().of(Kind.SYNC)) == READS


@pytest.mark.parametrize("pure", ["0", "1"])
def test_an_error_of_ours_at_the_end_of_counting_stays_with_us(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    monkeypatch.setattr("trainprof.inside.spans.sync.may_have_device", lambda torch: False)
    monkeypatch.setattr(SyncProbe, "_stop_counting", lambda *_: {}["ours"])
    monkeypatch.setenv(PURE_PYTHON, pure)
    recorder.start(SyncProbe(), now=itertools.count(step=10_000).__next__)
    value = torch.tensor(3)
    assert sum(value.item() for _ in range(READS + 100)) == 3 * (READS + 100)
    recording = recorder.read()
    assert len(recording.of(Kind.SYNC)) == READS
    assert [fault["probe"] for fault in recording.notes(Topic.PROBE_FAILED)] == ["sync"]


def test_synchronize(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "synchronize", lambda device=None: None)
        recorder.start(SyncProbe())
        torch.cuda.synchronize()
        recorder.stop()
    [event] = recorder.read().of(Kind.SYNC)
    assert (event.flags, event.text[0]) == (SyncFlag.SYNCHRONIZE, __file__)


def reading_in(file: str) -> Callable[[Callable[[], Any]], None]:
    """Returns a function of a file that calls another."""
    names: dict[str, Any] = {}
    exec(compile("def read(call):\n    call()\n", file, "exec"), names)
    read: Callable[[Callable[[], Any]], None] = names["read"]
    return read


def test_whose_code_asks_a_device(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainprof.inside.spans.sync.may_have_device", lambda torch: True)
    recorder.start(SyncProbe())
    value = torch.ones(1, device="meta")  # stands for a device's
    item = operator.methodcaller("item")
    of_torch = reading_in(f"{torch.__path__[0]}/optim/planted.py")
    of_package = reading_in(f"{sysconfig.get_path('purelib')}/planted_trainer.py")
    of_python = reading_in(f"{sysconfig.get_path('stdlib')}/statistics.py")
    reads = functools.partial(item, value)
    both = SyncFlag.BY_TORCH | SyncFlag.BY_LIBRARY
    calls: list[tuple[Callable[[], None], int]] = [
        (lambda: item(value), 0),
        (lambda: of_torch(reads), SyncFlag.BY_TORCH),
        (lambda: of_package(reads), SyncFlag.BY_LIBRARY),
        (lambda: of_package(functools.partial(of_torch, reads)), both),
        (lambda: of_torch(reads), SyncFlag.BY_TORCH),
        (lambda: of_python(reads), 0),
    ]
    for _ in range(2):  # whose it is, is asked once, or known
        for call, _ in calls:
            with pytest.raises(RuntimeError):
                call()
    recording = recorder.read()
    flags = [event.flags for event in recording.of(Kind.SYNC)]
    assert flags == [SyncFlag.ITEM | flag for _, flag in calls] * 2
    assert {event.text[0] for event in recording.of(Kind.SYNC)} == {__file__}
    assert recording.notes(Topic.PROBE_FAILED) == []


class Reads:
    """A device's values, read one after another; `marked` has which got a mark."""

    def __init__(self) -> None:
        self.clock, self.marked = FakeClock(), list[bool]()
        self.chain = _Chain(self.clock, self._mark)

    def _mark(self) -> int:
        self.marked[-1] = True
        self.clock.advance(30_000)
        return self.clock.now_ns

    def read(self, gap_ns: int, took_ns: int, place: int = 1) -> None:
        self.clock.advance(gap_ns)
        self.marked.append(False)
        start, flag = self.chain.begin((place, 0))
        self.clock.advance(took_ns)
        assert self.chain.end((place, 0), start, flag) - start == took_ns
        assert bool(flag) is not self.marked[-1]


@pytest.mark.parametrize(
    ("reads", "marked"),
    [
        # Fast reads right after one another; those that come later, or wait, have marks.
        ([(15_000, 20_000)] * 200, ([True] + [False] * 64) * 3 + [True] + [False] * 4),
        ([(60_000, 20_000)] * 10, [True] * 10),
        ([(15_000, 70_000)] * 10, [True] * 10),
        # A line whose reads wait, behind fast ones: the first of each line, what waits, and what
        # comes after that.
        (
            [(5_000, 10_000, 1), (5_000, 10_000, 2), (5_000, 900_000, 3)] * 10,
            [True, True, True] + [True, False, True] * 9,
        ),
    ],
)
def test_reads_in_a_chain_get_few_marks(reads: list[Any], marked: list[bool]) -> None:
    device = Reads()
    for read in reads:
        device.read(*read)
    assert device.marked == marked
