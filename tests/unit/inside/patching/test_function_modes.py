"""What is seen under a default device, a mode of torch's, and under modes of the script's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.fake_device import transfer_probe
from support.session import Recorder
from torch.overrides import TorchFunctionMode

from trainprof.inside.model.torch_settings import TorchSettingsProbe
from trainprof.inside.patching.function_modes import FunctionModes, PlainTensors
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.record.schema import Kind, SyncFlag, Topic, TransferFlag

GPU = "fakegpu"


class Spy(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    fake_device.register()


@pytest.fixture(params=["set_default_device", "with"])
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets one in either way; of the host, since a fake tensor is made of one of the host's."""
    if request.param == "with":
        with torch.device("cpu"):
            yield
        return
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def test_a_default_device_is_no_mode_of_the_scripts() -> None:
    modes = FunctionModes(torch)
    host = torch.device("cpu")
    assert (modes.would_notice(), modes.depth()) == (False, 0)
    with host:
        assert (modes.would_notice(), modes.depth()) == (False, 1)
        with Spy():
            assert modes.would_notice()
    with Spy():
        assert modes.would_notice()
        with host:
            assert modes.would_notice()


def copies() -> int:
    """Returns the line before the first."""
    line = sys._getframe().f_lineno
    there = torch.zeros(4).to(GPU)
    x = torch.zeros(4)
    x.to(GPU)
    there.cpu()
    return line


@pytest.mark.usefixtures("default_device")
def test_copies_are_the_scripts_own_lines(recorder: Recorder) -> None:
    recorder.start(transfer_probe())
    line = copies()
    events = recorder.read().of(Kind.TRANSFER)
    made = TransferFlag.H2D | TransferFlag.CREATED_IN_LINE
    assert [event.flags for event in events] == [made, TransferFlag.H2D, TransferFlag.D2H]
    assert [int(event.line.partition(":")[2]) - line for event in events] == [1, 3, 4]


def test_copies_under_a_mode_of_the_scripts_too(recorder: Recorder) -> None:
    def watched() -> list[str]:
        with torch.device("cpu"), Spy() as spy:
            copies()
            torch.zeros(2).to(torch.float64)
        return spy.seen

    bare = watched()
    recorder.start(transfer_probe(), SyncProbe())
    assert watched() == bare
    assert len(recorder.read().of(Kind.TRANSFER)) == 3  # from the mode's line


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("has_device", [False, True])
def test_reads_are_counted_once_at_the_scripts_own_lines(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, has_device: bool
) -> None:
    monkeypatch.setattr("trainprof.inside.spans.sync.may_have_device", lambda torch: has_device)
    recorder.start(SyncProbe())
    line = sys._getframe().f_lineno
    torch.tensor(3.0).item()
    if has_device:
        with pytest.raises(RuntimeError):
            torch.ones(1, device="meta").item()  # stands for that device
    events = recorder.read().of(Kind.SYNC)
    on_host = SyncFlag.ITEM | SyncFlag.ON_CPU
    assert [event.flags for event in events] == [on_host, *([SyncFlag.ITEM] * has_device)]
    assert [int(event.line.partition(":")[2]) - line for event in events] == [1, 4][: len(events)]


ASKED = {"unfused", "looped_optimizer", "numerics"}


@pytest.mark.parametrize("has_own_mode", [False, True])
def test_what_a_mode_of_the_scripts_would_see_is_not_asked(
    recorder: Recorder, has_own_mode: bool
) -> None:
    with torch.device("cpu"), Spy() if has_own_mode else nullcontext():
        recorder.start(ForwardProbe(), TorchSettingsProbe(), OptimizerProbe())
        model = torch.nn.Linear(2, 2)
        model.bias.requires_grad_(False)
        model(torch.ones(1, 2)).sum().backward()
        torch.optim.Adam(model.parameters()).step()
        notes = recorder.read().notes(Topic.ENVIRONMENT)
        recorder.stop()
    noted = {key for note in notes for key in note}
    assert noted & ASKED == (set() if has_own_mode else ASKED)
    numerics = [note["numerics"] for note in notes if "numerics" in note]
    assert numerics == ([] if has_own_mode else [{"parameters": "float32"}])


def test_nothing_is_computed_where_torchs_profiler_would_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(is_compiling=lambda: False)
    tensors = PlainTensors(torch, session)
    assert tensors.may_compute()
    monkeypatch.setattr("torch.autograd.profiler._is_profiler_enabled", True)
    assert not tensors.may_compute()
