"""What is recorded of copies between devices."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import fake_device
from support.fake_device import FakeTensor, transfer_probe
from support.session import Recorder
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainprof.inside.spans.transfer import is_created_in
from trainprof.record.schema import Kind, TransferFlag

GPU = "fakegpu"


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    fake_device.register()


def here() -> int:
    return sys._getframe(1).f_lineno


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def copies() -> Any:
        x = torch.arange(4.0)
        assert x.to("cpu") is x
        return x.to(torch.int32), x.to(GPU).cpu(), torch.zeros(4).copy_(x), x.to(x.to(GPU))._raw

    assert same_with_us(copies, transfer_probe())[0] == "returned"


def test_direction_bytes_and_line(recorder: Recorder) -> None:
    recorder.start(transfer_probe())
    x = torch.zeros(10)
    y = x.to(GPU)
    line = here() - 1
    y.cpu()
    y.to("cpu", torch.float64)
    y.copy_(x)
    x.copy_(y)
    events = recorder.read().of(Kind.TRANSFER)
    h2d, d2h = (TransferFlag.H2D, 40), (TransferFlag.D2H, 40)
    expected = [h2d, d2h, (TransferFlag.D2H, 80), h2d, d2h]
    assert [(e.flags, e.value) for e in events] == expected
    assert events[0].line == f"test_transfer.py:{line}"


def test_what_stays_on_its_device_is_no_transfer(recorder: Recorder) -> None:
    recorder.start(transfer_probe())
    x = torch.zeros(3)
    for where in ("cpu", torch.float16, "meta"):
        x.to(where)  # type: ignore[call-overload]
    torch.zeros(3, device="meta").to("meta", torch.int8)
    torch.zeros(3).copy_(x)
    FakeTensor(x).to(GPU)
    assert recorder.read().of(Kind.TRANSFER) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((GPU,), {"non_blocking": True}, True),
        ((GPU, torch.float32, True), {}, True),
        ((GPU, torch.float32, False, True), {}, False),  # the last one is `copy`
        ((GPU,), {"non_blocking": False}, False),
        ((GPU,), {}, False),
    ],
)
def test_non_blocking(
    recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool
) -> None:
    recorder.start(transfer_probe())
    torch.zeros(3).to(*args, **kwargs)
    [event] = recorder.read().of(Kind.TRANSFER)
    assert bool(event.flags & TransferFlag.NON_BLOCKING) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.zeros(3).to(GPU).cpu()", True),
        ("noise = torch.randn(x.shape).to(device)", True),
        ("noise = torch.randn_like(x, dtype=f(a, (1, 2))).cuda()", True),
        ("h, c = torch.zeros(n).to(device), torch.zeros(n).to(device)", True),
        ("x, h = x.to(device), torch.zeros(n).to(device)", False),  # a batch as well
        ("mask = torch.ones(n) * x.float().to(device)", False),
        ("x = torch.tensor(seen).to(device)", False),  # the host has it
        ("x = x.to(device)", False),
    ],
)
def test_a_line_that_makes_what_it_copies(line: str, expected: bool) -> None:
    assert is_created_in(line) is expected


def test_a_copy_of_what_its_line_makes_has_a_flag(recorder: Recorder) -> None:
    recorder.start(transfer_probe())
    torch.zeros(3).to(GPU)
    x = torch.zeros(3)
    x.to(GPU)
    flags = [event.flags for event in recorder.read().of(Kind.TRANSFER)]
    assert flags == [TransferFlag.H2D | TransferFlag.CREATED_IN_LINE, TransferFlag.H2D]


class Pair:
    """A container as libraries have them, whose `to` takes a device alone."""

    def __init__(self) -> None:
        self.first = torch.zeros(3)

    def to(self, device: str) -> torch.Tensor:
        return self.first.to(device)


def test_who_calls_a_tensors_own_method(recorder: Recorder) -> None:
    recorder.start(transfer_probe())
    packed = nn.utils.rnn.pack_sequence([torch.zeros(3, 2)])
    packed.to(GPU)  # a container of torch's
    line = here() - 1
    Pair().to(GPU)  # one of the user's, whose own line is told
    torch.utils._pytree.tree_map(lambda tensor: tensor.to(GPU), [torch.zeros(3)])
    by_library, by_user, by_function = recorder.read().of(Kind.TRANSFER)
    assert by_library.flags == TransferFlag.H2D | TransferFlag.BY_LIBRARY
    assert by_library.line == f"test_transfer.py:{line}"
    assert by_user.flags == by_function.flags == TransferFlag.H2D
    assert by_user.line != f"test_transfer.py:{line + 2}"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_profiler_sees_no_question(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    asked = []

    def is_pinned(self: torch.Tensor) -> bool:
        asked.append(self)
        return pinned

    recorder.start(transfer_probe())
    x = torch.zeros(3)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_pinned", is_pinned)
        for profiles in (False, True):
            monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", profiles)
            x.to(GPU)
        x.to(GPU)  # at a line that was not met before
    flags = [event.flags for event in recorder.read().of(Kind.TRANSFER)]
    seen = TransferFlag.H2D | (TransferFlag.PINNED if pinned else 0)
    assert flags == [seen, seen, TransferFlag.H2D | TransferFlag.PINNED]
    assert len(asked) == 1


def test_a_model_is_placed_not_transferred(recorder: Recorder) -> None:
    recorder.start(transfer_probe())

    class Placing(nn.Module):
        def _apply(self, function: Any, recurse: bool = True) -> Any:
            torch.zeros(2).to(GPU)  # as buffers of its own
            thread = threading.Thread(target=lambda: torch.zeros(3).to(GPU))
            thread.start()
            thread.join()
            return super()._apply(function, recurse)

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Placing())
    model.to(torch.float64)
    line = here() - 1
    torch.zeros(1).to(GPU)
    recording = recorder.read()
    # That of another thread, and the later one.
    assert [event.value for event in recording.of(Kind.TRANSFER)] == [12, 4]
    [event] = recording.of(Kind.PLACEMENT)
    assert event.line == f"test_transfer.py:{line}"


def test_profiler_and_dispatch_mode_see_none_of_ours(same_with_us: Callable[..., Any]) -> None:
    class Spy(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    calls: list[str] = []

    def watched() -> list[str]:
        calls.clear()
        x = torch.zeros(2)
        with torch.profiler.profile() as profiler:
            x.to(GPU)
        shown = sorted(event.name for event in profiler.events() if event.name[:6] == "aten::")
        with Spy():
            x.to(GPU)
        return [*shown, *calls]

    kind, seen = same_with_us(watched, transfer_probe())
    assert (kind, len(seen) > 1) == ("returned", True)
