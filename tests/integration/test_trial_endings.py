"""What a trial's script leaves to be done behind its loop is not done where a limit ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.styles import without_compiler
from support.trials import sandbox_for

from trainprof.analysis.summary.tune import OK
from trainprof.launch import lingering
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.runner import Script, ScriptRunner
from trainprof.tune.trial import Limits, Measured, baseline
from trainprof.tune.trial_reading import DID_NOT_END

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
    monkeypatch.chdir(work)
    sandbox = sandbox_for(work)
    runner = ScriptRunner(
        Script(("train.py",)), RunDirectory(work / "t"), interval_s=0.5, sandbox=sandbox
    )
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
    monkeypatch.setattr(lingering, "AT_END_S", 0.5)
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
