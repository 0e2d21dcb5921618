"""Wrapped functions that no Python code calls, as at exit: there is no frame above ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import fake_device
from support.bare_call import by_python_itself
from support.fake_device import FakeTensor
from support.session import Recorder, Recording
from torch import nn
from torch.utils.data import DataLoader

from trainprof.inside.model.torch_settings import TorchSettingsProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import Kind, Topic, TransferFlag

GPU = "fakegpu"


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    fake_device.register()


def without_faults(recorder: Recorder) -> Recording:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return recording


def numbers(**options: Any) -> DataLoader[int]:
    data: Any = [1, 2, 3, 4]
    return DataLoader(data, **options)


def test_workers_are_shut_down(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    iterator: Any = iter(numbers(num_workers=1))
    next(iterator)
    assert by_python_itself(iterator._shutdown_workers) == []
    assert iterator._shutdown is True
    assert not any(worker.is_alive() for worker in iterator._workers)
    assert len(without_faults(recorder).of(Kind.LOADER_CLOSE)) == 1


def test_a_loader_is_built_and_iterated(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    loader: Any = DataLoader.__new__(DataLoader)
    assert by_python_itself(setattr, loader, "dataset", [1]) == []
    assert vars(loader)["dataset"] == [1]
    whole = numbers()
    assert by_python_itself(type(iter(whole)), whole) == []
    assert len(without_faults(recorder).of(Kind.LOADER_INIT)) == 2


def test_the_number_of_threads_is_set(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe())
    assert by_python_itself(torch.set_num_threads, torch.get_num_threads()) == []
    without_faults(recorder)


def test_a_tensor_is_copied_and_a_model_placed(recorder: Recorder) -> None:
    probe = TransferProbe()
    probe.plain_types.add(FakeTensor)
    recorder.start(probe)
    assert by_python_itself(torch.zeros(10).to, GPU) == []
    assert by_python_itself(nn.Linear(2, 2)._apply, torch.Tensor.double) == []
    recording = without_faults(recorder)
    (copied,) = recording.of(Kind.TRANSFER)
    assert (copied.site, copied.flags) == (0, TransferFlag.H2D | TransferFlag.BY_LIBRARY)
    assert [placed.site for placed in recording.of(Kind.PLACEMENT)] == [0]


def test_a_value_is_read(recorder: Recorder) -> None:
    recorder.start(SyncProbe())
    assert by_python_itself(torch.zeros(1).item) == []
    torch.zeros(1).item()
    assert [bool(event.site) for event in without_faults(recorder).of(Kind.SYNC)] == [True]
