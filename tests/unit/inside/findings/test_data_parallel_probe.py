"""Models in nn.DataParallel are noted where they are on several devices."""

from __future__ import annotations

import pytest
import torch
from support.session import Recorder
from torch import nn

from trainprof.findings.distributed.data_parallel.probe import DataParallelNote, DataParallelProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.notes import last_note
from trainprof.record.schema import Topic


class OnTheHost(nn.DataParallel[nn.Module]):
    """With the devices that it would have; no real one is asked for."""

    def __init__(self, module: nn.Module, devices: int) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids = module, list(range(devices))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_a_model_on_several_devices_is_noted(recorder: Recorder, devices: int) -> None:
    recorder.start(ForwardProbe(), OptimizerProbe(), DataParallelProbe())
    model = OnTheHost(nn.Linear(4, 1), devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    note = last_note(DataParallelNote, recording.notes(Topic.ENVIRONMENT))
    assert (0 if note is None else note.devices) == (devices if devices > 1 else 0)
