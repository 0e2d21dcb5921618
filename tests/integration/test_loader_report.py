"""What a report says of a loader with workers, against what the script planted in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.styles import PREAMBLE, ROOT, profile

SAMPLE_S, SLOW_S, SLOW_INDEX = 0.004, 0.15, 37
SAMPLES, BATCH, EPOCHS = 96, 4, 2
PLANTED_S = EPOCHS * ((SAMPLES - 1) * SAMPLE_S + SLOW_S)

SCRIPT = f"""
class Sleepy(Dataset):
    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        time.sleep({SLOW_S} if index == {SLOW_INDEX} else {SAMPLE_S})
        return torch.randn(8), torch.randn(1)

loader = DataLoader(Sleepy(), batch_size={BATCH}, num_workers=2, persistent_workers=True)
model = make_model(0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range({EPOCHS}):
    for x, y in loader:
        loss = mse(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
tell()
"""


def recorded(directory: Path, *options: str) -> dict[str, Any]:
    """The loader of a run, as its summary has it."""
    summary, _ = profile(directory, PREAMBLE + SCRIPT, options=options)
    assert summary["faults"] == []
    (loader,) = summary["loaders"]
    return loader  # type: ignore[no-any-return]


def shown(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trainprof", "report", "run", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.proves("Loaders", "where the time of making a batch goes, by worker")
@pytest.mark.proves("Loaders", "one slow sample among a hundred, named by its index")
def test_sleeping_workers_are_explained(tmp_path: Path) -> None:
    loader = recorded(tmp_path, "--slow-samples", "3")
    fetch = loader["fetch"]
    assert fetch["n"] == EPOCHS * SAMPLES // BATCH
    wall_s = fetch["wall_s"]["mean"] * fetch["n"]
    # Who sleeps so long is asleep at least as long, but while another thread of the worker's works:
    # the one that hands over batches, which a busy machine may move into a fetch.
    assert 0.9 * PLANTED_S <= fetch["asleep_s"] <= wall_s
    assert fetch["asleep_s"] + fetch["cpu_s"] >= PLANTED_S
    assert fetch["dataset_s"] + fetch["collate_s"] == pytest.approx(wall_s)
    assert fetch["dataset_s"] >= PLANTED_S
    slow = fetch["slow_samples"]
    assert len(slow) == 3
    assert [sample["index"] for sample in slow[:EPOCHS]] == [SLOW_INDEX] * EPOCHS
    assert all(sample["seconds"] >= SLOW_S for sample in slow[:EPOCHS])

    page = shown(tmp_path)
    line = PREAMBLE.count("\n") + SCRIPT.split("loader = DataLoader")[0].count("\n") + 1
    assert f"Data loading at script.py:{line}: 2 workers, " in page
    whole = shown(tmp_path, "--loader", f"script.py:{line}")
    assert f"dataset[{SLOW_INDEX}]" in whole
    # What follows tells whether anything came from the disk meanwhile, on a cold cache say.
    assert "asleep (sleep, lock, network" in whole
    rows = [text.split()[:2] for text in whole.split("\n") if text[:3] in ("0  ", "1  ")]
    assert {(row[0], row[1]) for row in rows} >= {("0", "24"), ("1", "24")}
    shown_json = json.loads(shown(tmp_path, "--loader", str(loader["id"]), "--format", "json"))
    assert shown_json == loader


def test_no_sample_is_timed_where_none_is_asked_for(tmp_path: Path) -> None:
    loader = recorded(tmp_path, "--slow-samples", "0")
    assert loader["fetch"]["slow_samples"] == []
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["options"]["slow_samples"] == 0
    assert "\nSample " not in shown(tmp_path, "--loader", str(loader["id"]))
