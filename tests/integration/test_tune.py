"""`tune` on real scripts: what was planted is found and measured, and the user's files stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.styles import without_compiler

from trainprof.analysis.tuning import BASELINE, CEILING, FAILED, LOADER_ALONE, OK

# A batch sleeps for 30 ms in the loader, training for 10: workers can hide nearly all of it.
SCRIPT = without_compiler("""
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Slow(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        if "alone" in sys.argv and get_worker_info() is not None:
            raise RuntimeError("not in a worker")
        time.sleep(0.03)
        return torch.ones(4)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for batch in DataLoader(Slow(), batch_size=None):
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        torch.save(model.state_dict(), "model.pt")
    print("trained", loss.item())


if __name__ == "__main__":
    main()
""")


def tuned(directory: Path, *words: str, budget: str = "45s") -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "trainprof", "tune", f"--budget={budget}", "-o", "tune", *words],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def trials(summary: dict[str, Any]) -> dict[str, Any]:
    return {trial["name"]: trial for trial in summary["trials"]}


@pytest.mark.proves("Tuning", "a loader without workers: found, measured, the ceiling beside it")
def test_what_would_help_is_measured_and_files_stay_as_they_are(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "model.pt").write_bytes(b"mine")
    done = tuned(work, "--trial-steps=60", "--format=json", "train.py")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    rows = trials(summary)
    assert rows[BASELINE]["speedup"]["mid"] == 1.0
    best = summary["recommended"]
    assert best["overrides"]["num_workers"] >= 2
    assert best["sites"] == ["train.py:24"]
    # 40 ms a step, 10 of them training: at most four times as fast, but for a busy machine.
    assert rows[CEILING]["speedup"]["mid"] > 2
    assert rows[LOADER_ALONE]["speedup"]["mid"] > 1
    assert rows[best["name"]]["losses"] == "same"
    assert (work / "model.pt").read_bytes() == b"mine"
    assert sorted(path.name for path in work.iterdir()) == ["model.pt", "train.py", "tune"]
    console = work / "tune" / rows[BASELINE]["directories"][0] / "console" / "stdout"
    assert console.read_text().startswith("trained") or console.read_text() == ""
    assert not list((work / "tune").glob("trials/*/scratch"))


def test_a_trial_that_fails_is_a_row_and_a_run_can_be_gone_on_with(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = tuned(work, "--trial-steps=40", "train.py", "alone", budget="9s")
    assert done.returncode == 0, done.stderr
    assert "trainprof tune --resume tune" in done.stdout
    command = [sys.executable, "-m", "trainprof", "tune", "--resume=tune", "--budget=25s"]
    done = subprocess.run(
        [*command, "--format=json"],
        cwd=work,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    by_workers = [row for row in summary["trials"] if "num_workers" in row["overrides"]]
    assert by_workers
    assert {row["outcome"] for row in by_workers} == {FAILED}
    assert by_workers[0]["detail"] == "RuntimeError"
    assert trials(summary)[BASELINE]["outcome"] == OK
    assert summary["recommended"] is None
