"""`tune` on real scripts: what was planted is found and measured, and the user's files stay."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.processes import can_be_read
from support.styles import without_compiler
from support.trials import runner_in

from trainprof.analysis.summary.tune import (
    BASELINE,
    BUDGET,
    CEILING,
    FAILED,
    HUNG,
    LOADER_ALONE,
    OK,
)
from trainprof.tune.trial import Limits, Trial, ceiling

# A batch sleeps for 30 ms in the loader, training for 10: workers can hide nearly all of it.
SCRIPT = without_compiler("""
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Slow(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        if get_worker_info() is not None and len(sys.argv) > 1:
            exec(sys.argv[1])
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


# Nothing takes as long; a process that stays fails the test then.
PATIENCE_S = 60.0


def tuned(directory: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "trainprof", "tune", "--format=json", *words],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.proves("Tuning", "a loader without workers: found and measured, with the ceiling")
def test_what_would_help_is_measured_and_files_stay_as_they_are(tmp_path: Path) -> None:
    for attempt in attempts():
        work = tmp_path / str(attempt)
        work.mkdir()
        (work / "train.py").write_text(SCRIPT)
        (work / "model.pt").write_bytes(b"mine")
        begun = tuned(work, "-o", "tune", "--trial-steps=40", "--budget=15s", "train.py")
        assert begun["tuning"]["ended_by"] == BUDGET
        summary = tuned(work, "--resume=tune", "--budget=30s", "train.py")
        if summary["recommended"] is not None:  # else nothing was seen above the noise
            break
    rows = {trial["name"]: trial for trial in summary["trials"]}
    assert rows[BASELINE]["speedup"]["mid"] == 1.0
    before = {name for trial in begun["trials"] for name in trial["directories"]}
    after = {name for trial in summary["trials"] for name in trial["directories"]}
    # In a small budget the first run serves as the baseline.
    assert before - {"trials/warm_up"} <= after
    best = summary["recommended"]
    assert best["overrides"]["num_workers"] >= 2
    assert best["sites"] == ["train.py:22"]
    # 40 ms a step, 10 of them training: at most four times as fast, less on a busy machine.
    assert rows[CEILING]["speedup"]["mid"] > 2
    assert rows[LOADER_ALONE]["speedup"]["mid"] > 1
    assert rows[best["name"]]["losses"] == "same"
    assert (work / "model.pt").read_bytes() == b"mine"
    assert sorted(path.name for path in work.iterdir()) == ["model.pt", "train.py", "tune"]
    assert not (work / "tune" / "scratch").exists()


ENDLESS = without_compiler("""
import os, time
import torch

with open(os.environ["TELLING"], "w") as pipe:
    pipe.write(f"{os.getpid()}\\n")
while True:
    time.sleep(0.01)
""")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is no child")
def test_a_trial_ends_with_a_tune_that_was_killed(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    pipe = outside / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "trainprof", "tune", "-q", "--budget=1h", "train.py"]
    environment = {**os.environ, "TELLING": str(pipe)}
    tune = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
    script = int(pipe.read_text())
    descriptor = os.pidfd_open(script)
    try:
        tune.kill()
        tune.wait()
        assert can_be_read(descriptor, PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


ELSEWHERE = ("src/train.py:22",)
TRIALS = (ceiling(ELSEWHERE, None), Trial("workers", {"num_workers": 1}, sites=ELSEWHERE))


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_script_that_begins_elsewhere_is_changed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(f"cd src && {shlex.quote(sys.executable)} train.py\n")
    runner = runner_in(tmp_path, monkeypatch, "bash", "run.sh")
    measured = runner.run(trial, 1, Limits(steps=95, killed_after_s=120.0))
    assert (measured.outcome, measured.detail, measured.refused) == (OK, None, {})
    assert measured.is_ok


@pytest.mark.parametrize(
    ("in_a_worker", "outcome", "detail"),
    [
        ("raise KeyError(7)", FAILED, "KeyError: 7"),
        ("time.sleep(600)", HUNG, "no step in "),
    ],
)
def test_a_trial_that_does_not_train_is_a_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_a_worker: str,
    outcome: str,
    detail: str,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    runner = runner_in(tmp_path, monkeypatch, "train.py", in_a_worker)
    trial = Trial("num_workers=1", {"num_workers": 1}, sites=("train.py:22",))
    limit_s = 8.0 if outcome == HUNG else 120.0
    measured = runner.run(trial, 1, Limits(steps=30, killed_after_s=limit_s))
    assert (measured.outcome, measured.pace) == (outcome, None)
    assert measured.detail is not None
    assert measured.detail.startswith(detail)
    assert (tmp_path / "tune" / measured.directory / "console" / "stderr").exists()
