"""What is recorded of calls of torch.distributed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.session import Recorder
from torch.distributed import device_mesh

from trainprof.inside.spans.collective import CollectiveProbe, ProcessGroupProbe
from trainprof.record.schema import COLLECTIVES, Kind, Topic


@pytest.mark.usefixtures("group")
def test_the_outermost_call_is_recorded_with_its_line(recorder: Recorder) -> None:
    recorder.start(CollectiveProbe())
    dist.all_reduce(torch.ones(2))
    line = sys._getframe().f_lineno - 1
    dist.all_gather_object([None], "x")  # which gathers sizes and bytes
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    events = recorder.read().of(Kind.COLLECTIVE)
    names = [COLLECTIVES[event.flags] for event in events]
    assert names == ["all_reduce", "all_gather_object", "all_reduce", "wait"]
    assert [int(event.line.partition(":")[2]) - line for event in events] == [0, 2, 3, 4]


@pytest.mark.parametrize("by_mesh", [False, True])
def test_rank_and_size_are_noted_on_joining(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_mesh: bool
) -> None:
    recorder.start(ProcessGroupProbe())
    if by_mesh:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        for name, value in address.items():
            monkeypatch.setenv(name, value)
        device_mesh.init_device_mesh("cpu", (1,))
    else:
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    notes = [note for note in recorder.read().notes(Topic.ENVIRONMENT) if "rank" in note]
    assert [(note["rank"], note["world_size"]) for note in notes] == [(0, 1)]
    dist.destroy_process_group()


def test_torch_without_it_is_no_fault(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_available", lambda: False)
        recorder.start(ProcessGroupProbe())
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_UNAVAILABLE) == recording.notes(Topic.PROBE_FAILED) == []
