"""Trials of real scripts: streams, what is left to do behind the loop, scripts that hang."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.styles import without_compiler
from support.trials import runner_in

from trainprof.analysis.summary.tune import OK
from trainprof.findings.saved import saved_summary
from trainprof.launch import deadline
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.choice import against
from trainprof.tune.measurements import Measurements
from trainprof.tune.runner import ScriptRunner
from trainprof.tune.trial import FirstEpoch, Limits, Measured, Trial, baseline
from trainprof.tune.trial_reading import DID_NOT_END

# -- streams: how long their passes are with workers

# It begins after a second and trains for two passes of 30 batches; how a worker gives its own part,
# or asks which one it is only for its seed, is the first word.
STREAM = without_compiler("""
import random, sys, time
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = 0, 1
        if sys.argv[1] == "shares" and worker is not None:
            first, step = worker.id, worker.num_workers
        rng = random.Random(7 + (worker.id if worker else 0))
        for index in range(first, 30, step):
            yield torch.full((4,), rng.random())

time.sleep(1.0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(int(sys.argv[2])):
    for batch in DataLoader(Stream(), batch_size=None):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.002)
""")
SITE = "train.py:21"
LIMITS = Limits(steps=None, killed_after_s=120.0)


def runner_of(directory: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> ScriptRunner:
    (directory / "train.py").write_text(STREAM)
    return runner_in(directory, monkeypatch, "train.py", *words)


@pytest.mark.parametrize(("how", "with_workers"), [("shares", 30), ("repeats", 60)])
def test_workers_that_repeat_a_stream_are_told_from_those_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, with_workers: int
) -> None:
    runner = runner_of(tmp_path, monkeypatch, how, "2")
    trial = Trial("num_workers=2", {"num_workers": 2}, sites=(SITE,))
    base, changed = runner.run(baseline(), 1, LIMITS), runner.run(trial, 1, LIMITS)
    assert (base.outcome, changed.outcome) == (OK, OK)
    assert base.first_epochs == {SITE: FirstEpoch(30, is_ended=True)}
    assert changed.first_epochs == {SITE: FirstEpoch(with_workers, is_ended=True)}
    assert bool(against(Measurements([base, changed]), trial)) is (how == "repeats")
    summary = saved_summary(RunDirectory(tmp_path / "tune" / base.directory))
    assert summary is not None
    # That it asks is no proof.
    assert summary.loaders[0].shares_samples is True


def test_a_script_that_takes_long_to_begin_gets_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half a second in all nothing would be left for steps."""
    runner = runner_of(tmp_path, monkeypatch, "shares", "1000")
    limits = Limits(None, 120.0, seconds=100.0, enough_s=(0.5, 0.5))
    measured = runner.run(baseline(), 1, limits)
    assert (measured.outcome, measured.was_cut) == (OK, True)
    assert measured.seconds < 60.0


# -- what is left to be done behind the loop is not done where a limit ends it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux takes care of orphans so")

TRAINS = without_compiler("""
import multiprocessing, os, subprocess, sys, threading, time
import torch

def train():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(70):
        weight.grad = torch.ones(2)
        optimizer.step()
        time.sleep(0.002)
""")
ACTS = """
def act(stop):
    stop.wait()

if __name__ == "__main__":
    stop = {of}.Event()
    actor = {of}.{kind}(target=act, args=(stop,))
    actor.start()
    train()
    stop.set()
    actor.join()
"""
# What it starts writes its number down, where an argument does not name it: else in the scratch.
SERVED = """
server = subprocess.Popen([sys.executable, "server.py"])
while not os.path.exists(os.environ["TOLD"]):
    time.sleep(0.01)
train()
server.kill()
"""
SERVER = """
import os, sys, time
told = os.environ["TOLD"]
open(told + ".new", "w").write(str(os.getpid()))
os.rename(told + ".new", told)
time.sleep(600)
"""


def ran_as_trial(work: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    runner = runner_in(work, monkeypatch, "train.py")
    return runner.run(baseline(), 1, Limits(steps=50, killed_after_s=120.0))


@pytest.fixture
def pid_file(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the server writes its number."""
    file = outside / "pid"
    monkeypatch.setenv("TOLD", str(file))
    yield file
    if file.exists() and psutil.pid_exists(int(file.read_text())):
        psutil.Process(int(file.read_text())).kill()


@pytest.mark.parametrize(("of", "kind"), [("threading", "Thread"), ("multiprocessing", "Process")])
def test_one_that_waits_for_ever_for_its_actor_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, kind: str
) -> None:
    monkeypatch.setattr(deadline, "AT_END_S", 0.5)
    (tmp_path / "train.py").write_text(TRAINS + ACTS.format(of=of, kind=kind))
    measured = ran_as_trial(tmp_path, monkeypatch)
    assert (measured.outcome, measured.steps, measured.failed_after) == (OK, 50, DID_NOT_END)
    assert measured.is_ok
    assert measured.run_s is None
    assert measured.seconds < 60.0


def test_what_it_leaves_running_ends_with_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid_file: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAINS + SERVED)
    (work / "server.py").write_text(SERVER)
    measured = ran_as_trial(work, monkeypatch)
    assert (measured.outcome, measured.failed_after) == (OK, None)
    [name] = measured.left_running
    assert name.endswith(" server.py")
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_a_run_that_is_no_trial_leaves_it_as_plain_python_does(
    tmp_path: Path, pid_file: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + SERVED)
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, "-m", "trainprof", "run", "--max-steps=40", "-o", "run"]
    done = subprocess.run(
        [*command, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
    assert psutil.Process(int(pid_file.read_text())).is_running()
    assert not list((tmp_path / "run").glob("limit_met-*"))


# -- scripts that hang before their first step

BUDGET_S = 10.0
TUNE = (sys.executable, "-m", "trainprof", "tune")
# Beyond the budget: SIGTERM and SIGKILL, reading what was recorded (3 s), and a busy machine.
ENDING_S = 45.0

IN_PYTHON = """
import time
import torch
time.sleep(3600)
"""
# No other thread and no signal handler of Python runs in the meantime.
IN_NATIVE_CODE = """
import ctypes, signal
import torch
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.PyDLL(None).sleep(3600)
"""
WITH_A_CHILD = """
import signal, subprocess, sys
import torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(3600)
'''])
"""


HANGS = {"in_python": IN_PYTHON, "in_native_code": IN_NATIVE_CODE, "with_a_child": WITH_A_CHILD}


def test_scripts_that_hang_before_their_first_step_end_with_the_budget(tmp_path: Path) -> None:
    """They sleep, all at the same time: the budget passes once."""
    tunes = {}
    for name, script in HANGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(without_compiler(script))
        tunes[name] = subprocess.Popen(
            [*TUNE, f"--budget={BUDGET_S:g}s", "-o=t", "--format=json", "train.py"],
            cwd=tmp_path / name,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for name, tune in tunes.items():
        _, stderr = tune.communicate(timeout=BUDGET_S + ENDING_S)
        assert tune.returncode == 2, (name, stderr)
        assert "warm_up: hung" in stderr, name
        assert "--budget" in stderr, name
