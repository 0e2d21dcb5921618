"""Trials with a real device: pinned memory, copies that do not wait, settings of cuDNN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.on_device import VARIABLE, line_of, write
from support.session import read_recordings, run_hooked

from trainprof.launch.options import TrialOptions
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, TransferFlag
from trainprof.tune.trial_output import read_trial_notes

pytestmark = pytest.mark.gpu

# Says of each batch whether it came pinned, and its loss.
SCRIPT = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(80, 64), torch.randn(80, 1))
loader = DataLoader(data, 8)  # builds
model = perceptron(64)
optimizer = torch.optim.Adam(model.parameters())
told = []
for epoch in range(4):
    for x, y in loader:
        told.append([x.is_pinned(), descend(model, optimizer, x.to(device), y.to(device)).item()])
print(json.dumps(told))
"""
SITE = line_of(SCRIPT, "# builds")


def run_trial(
    directory: Path, device: str, asked: TrialOptions
) -> tuple[list[tuple[bool, float]], RunDirectory]:
    write(directory, SCRIPT)
    run = RunDirectory(directory / "run")
    options: dict[str, object] = {"trial": asked.to_json()}
    done = run_hooked(["script.py"], directory, run.path, options=options, env={VARIABLE: device})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), run


@pytest.mark.parametrize("data", ["real", "free"])
def test_pinned_batches_are_copied_without_waiting(tmp_path: Path, device: str, data: str) -> None:
    asked = TrialOptions(sites=(SITE,), loaders={"pin_memory": True}, data=data)  # type: ignore[arg-type]
    batches, run = run_trial(tmp_path, device, asked)
    is_pinned = [pinned for pinned, _ in batches]
    assert is_pinned == [device == "cuda"] * 40  # copies of batches too
    copies = read_recordings(run.events)[0].of(Kind.TRANSFER)
    to_device = [copy.flags for copy in copies if copy.flags & TransferFlag.H2D]
    expected = TransferFlag.PINNED | TransferFlag.NON_BLOCKING if device == "cuda" else 0
    assert [flags & ~TransferFlag.H2D for flags in to_device] == [expected] * 80
    notes = read_trial_notes(run)
    assert notes.applied["pin_memory"] is True
    assert notes.refused == {}
    assert list(notes.losses) == [loss for _, loss in batches]


def test_settings_of_the_device(tmp_path: Path, cuda: str) -> None:
    settings = {"fused": True, "cudnn_benchmark": True, "float32_matmul_precision": "high"}
    _, run = run_trial(tmp_path, cuda, TrialOptions(settings=settings))
    notes = read_trial_notes(run)
    assert (notes.applied, notes.refused) == (settings, {})
