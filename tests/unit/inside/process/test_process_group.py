"""What is noted of the process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.session import Recorder
from torch.distributed import device_mesh

from trainprof.inside.process.process_group import ProcessGroupProbe
from trainprof.record.schema import Topic


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., None]]:
    def init(**options: Any) -> None:
        plain = {"backend": "gloo", "rank": 0, "world_size": 1}
        dist.init_process_group(init_method=f"file://{tmp_path}/store", **{**plain, **options})

    yield init
    if dist.is_initialized():
        dist.destroy_process_group()


def ranks(recorder: Recorder) -> list[Any]:
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    return [note for note in notes if "rank" in note]


def test_rank_and_size_are_noted_on_joining(recorder: Recorder, join: Callable[..., None]) -> None:
    recorder.start(ProcessGroupProbe())
    join()
    assert ranks(recorder) == [{"rank": 0, "world_size": 1, "backend": "gloo"}]


def test_a_device_mesh_joins_too(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    recorder.start(ProcessGroupProbe())
    try:
        device_mesh.init_device_mesh("cpu", (1,))
        assert [note["rank"] for note in ranks(recorder)] == [0]
    finally:
        dist.destroy_process_group()


def test_a_torch_without_it_is_no_fault(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_available", lambda: False)
        recorder.start(ProcessGroupProbe())
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_UNAVAILABLE) == recording.notes(Topic.PROBE_FAILED) == []
