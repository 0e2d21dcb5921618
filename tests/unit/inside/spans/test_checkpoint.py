"""What is recorded of saving and loading."""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from support.session import Recorder, run_hooked

from trainprof.inside.spans.checkpoint import CheckpointProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Kind, Topic, Writer

COUNTS: list[None] = []


class Counted(os.PathLike[str]):
    """A path of the script's own, which notices that it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        COUNTS.append(None)
        return str(self._path)


def test_both_are_recorded_with_their_line_and_size(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "x"
    recorder.start(CheckpointProbe())
    torch.save(torch.ones(2), path)
    line = sys._getframe().f_lineno - 1
    torch.load(path)
    torch.save(obj=torch.ones(2), f=str(path))
    torch.save(torch.ones(2), io.BytesIO())
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save(torch.ones(2), tmp_path / "none" / "x")
    torch.save(torch.ones(2), Counted(path))
    asked = len(COUNTS)
    events = recorder.read().events
    kinds = [Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD, *[Kind.CHECKPOINT_SAVE] * 4]
    assert [event.kind for event in events] == kinds
    assert [event.line for event in events[:2]] == [
        f"test_checkpoint.py:{number}" for number in (line, line + 2)
    ]
    size = path.stat().st_size
    assert [event.value for event in events] == [size, 0, size, 0, 0, 0]
    recorder.stop()
    torch.save(torch.ones(2), Counted(path))
    assert len(COUNTS) == 2 * asked


ACCELERATE = "accelerate.accelerator"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a library in place, whose checkpoints are one file in memory each."""

    class Accelerator:
        def save_state(self, value: Any = 1) -> None:
            torch.save(value, io.BytesIO())

    planted = types.ModuleType(ACCELERATE)
    planted.Accelerator = Accelerator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, ACCELERATE, planted)
    return planted


@pytest.fixture
def stepped(recorder: Recorder) -> Callable[..., None]:
    """Starts the probe as a script has it that has imported all it needs, and steps."""

    def step() -> None:
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.grad = torch.ones(1)
        recorder.start(OptimizerProbe(), CheckpointProbe())
        optimizer.step()

    return step


def writers(recorder: Recorder) -> list[int]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return [save.flags for save in recording.of(Kind.CHECKPOINT_SAVE)]


@pytest.mark.frameworks("safetensors")
def test_safetensors_save(recorder: Recorder, stepped: Callable[..., None], tmp_path: Path) -> None:
    from safetensors.torch import save_file  # kept, as others do

    stepped()
    save_file({"w": torch.ones(64)}, tmp_path / "x")
    line = sys._getframe().f_lineno - 1
    [save] = recorder.read().of(Kind.CHECKPOINT_SAVE)
    assert (save.flags, save.line) == (Writer.SAFETENSORS, f"test_checkpoint.py:{line}")
    assert save.value == (tmp_path / "x").stat().st_size


def test_a_librarys_checkpoint(
    recorder: Recorder, stepped: Callable[..., None], library: Any
) -> None:
    own = library.Accelerator.save_state
    stepped()
    library.Accelerator().save_state(torch.ones(2))
    recorder.stop()
    assert library.Accelerator.save_state is own
    inner, outer = recorder.read().of(Kind.CHECKPOINT_SAVE)
    assert (inner.flags, outer.flags) == (Writer.TORCH, Writer.ACCELERATE)
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_half_imported_library(
    recorder: Recorder, stepped: Callable[..., None], library: Any
) -> None:
    own = library.Accelerator
    library.__spec__ = ModuleSpec(ACCELERATE, None)
    library.__spec__._initializing = True  # type: ignore[attr-defined]
    del library.Accelerator
    stepped()
    library.__spec__, library.Accelerator = None, own
    torch.save(1, io.BytesIO())
    own().save_state()
    assert recorder.read().notes(Topic.PROBE_UNAVAILABLE) == []
    assert writers(recorder) == [Writer.TORCH, Writer.TORCH, Writer.ACCELERATE]


def test_a_librarys_failure_is_the_same(stepped: Callable[..., None], library: Any) -> None:
    stepped()
    with pytest.raises(Exception, match="pickle") as raised:
        library.Accelerator().save_state(lambda: 0)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[:2] == [sys._getframe().f_code.co_name, "save_state"]


@pytest.mark.parametrize("stub", [mock.Mock(), types.SimpleNamespace(), object(), None])
def test_what_is_no_module_or_function_of_a_library_is_left_alone(
    recorder: Recorder,
    stepped: Callable[..., None],
    library: Any,
    monkeypatch: pytest.MonkeyPatch,
    stub: Any,
) -> None:
    if stub is None:
        library.Accelerator.save_state = stub = mock.Mock()
    else:
        monkeypatch.setitem(sys.modules, ACCELERATE, stub)
    stepped()
    torch.save(1, io.BytesIO())
    assert writers(recorder) == [Writer.TORCH]
    assert vars(library.Accelerator)["save_state"] is stub or sys.modules[ACCELERATE] is stub


def test_torchs_distributed_checkpoint_is_seen_by_whatever_name_it_is_called(
    recorder: Recorder,
    stepped: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.checkpoint import save, state_dict_saver

    # Not its own work, which asks for a device that other tests may have put in place.
    monkeypatch.setattr(state_dict_saver, "_save_state_dict", lambda *_, **__: "saved")
    stepped()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = save({"weight": torch.ones(4)}, checkpoint_id=tmp_path / "saved")
    assert (saved, pickle.loads(pickle.dumps(save))) == ("saved", save)
    assert writers(recorder)[-1] == Writer.DISTRIBUTED


def test_a_library_that_has_changed_is_reported_and_the_rest_works(
    recorder: Recorder, stepped: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["transformers.trainer", ACCELERATE]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    stepped()
    torch.save(torch.ones(2), io.BytesIO())
    reasons = [note["reason"] for note in recorder.read().notes(Topic.PROBE_UNAVAILABLE)]
    assert [reason.partition(" ")[0] for reason in reasons] == names
    assert writers(recorder) == [Writer.TORCH]


def test_a_checkpoint_that_python_itself_writes_at_exit_is_one(tmp_path: Path) -> None:
    """No frame stands above the call; the script is to notice nothing."""
    script = "import atexit, torch\natexit.register(torch.save, {'step': 1}, 'last.pt')\n"
    (tmp_path / "script.py").write_text(script)
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "last.pt").exists()
