"""A run that hangs ends at its limit, wherever it stands, and the page says where that was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import DEADLINE_S, Running, run, write_script

from trainprof.analysis.summary.run import STALE_FROM_S
from trainprof.record.last_stacks import read_last_stacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as Linux ends processes")

RUN = (sys.executable, "-m", "trainprof", "run", "-o", "run")
AT_LIMIT = (*RUN, "--max-time", "6s")
REPORT = (sys.executable, "-m", "trainprof", "report")

TRAINS = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""
# Threads of a pool that was used before do not live on in forked workers.
POOL = """
import torch
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader, Dataset
pool = ThreadPoolExecutor(1)
class Remote(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return pool.submit(float, index).result()  # it hangs here
pool.submit(float, 1).result()
loader = DataLoader(Remote(), num_workers=2, multiprocessing_context="fork")
if __name__ == "__main__":
    print("hangs", flush=True)
    for batch in loader:  # training waits here
        torch.ones(1)
"""
# Python code cannot run: SIGTERM ends it, for it has no handler of Python's.
HOLDS_THE_GIL = """
import ctypes, torch
print("hangs", flush=True)
ctypes.PyDLL(None).sleep(1000)
"""
DEAF = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print(os.getpid(), flush=True)
import torch
while True:
    time.sleep(0.05)
"""
SAVES = """
import signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, save)
time.sleep(1000)
"""
TRAINS_ON = f"""{TRAINS}
try:
    train(1 << 40)
finally:
    print("saved", flush=True)
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that process 1 has still to wait for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def line_of(script: str, words: str) -> int:
    return next(n for n, line in enumerate(script.splitlines(), 1) if words in line)


def summary(cwd: Path) -> dict[str, Any]:
    done = run(REPORT, "run", "--format", "json", cwd=cwd)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def places(summary: dict[str, Any]) -> dict[str, tuple[str, str]]:
    assert summary["hung"] is not None
    return {one["process"]: (one["site"], one["called"]) for one in summary["hung"]["stood"]}


def test_workers_and_the_thread_that_waits_for_them(tmp_path: Path) -> None:
    ended = run(AT_LIMIT, write_script(tmp_path, POOL).name, cwd=tmp_path)
    # Imports alone take longer where the machine is busy.
    if b"hangs" not in ended.stdout:
        shutil.rmtree(tmp_path / "run")
        longer = (*RUN, "--max-time", "30s")
        ended = run(longer, "script.py", cwd=tmp_path)
    assert ended.status == 0
    told = summary(tmp_path)
    assert (told["run"]["exit"]["reason"], told["run"]["exit"]["detail"]) == ("limit", "--max-time")
    hangs, waits = (line_of(POOL, words) for words in ("it hangs here", "training waits here"))
    stood = places(told)
    assert set(stood) == {"main", "worker 0", "worker 1"}
    assert stood["worker 0"] == stood["worker 1"]
    assert stood["worker 0"][0] == f"script.py:{hangs}"
    assert stood["worker 0"][1].endswith("result")
    page = ended.stderr.decode()
    assert "was ended by --max-time after" in page
    assert "workers 0-1" in page
    if stood["main"][0] == f"script.py:{waits}":  # it may not have come so far
        assert "waiting for its first batch" in page
    assert not [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(tmp_path)]
    assert read_last_stacks(tmp_path / "run" / "events") == []


def _age_s(samples: list[dict[str, Any]]) -> float:
    return min((time.perf_counter_ns() - one["at_ns"] for one in samples), default=0) * 1e-9


def test_native_code_that_holds_the_gil(tmp_path: Path) -> None:
    write_script(tmp_path, HOLDS_THE_GIL)
    with Running(RUN, "script.py", cwd=tmp_path) as process:
        assert process.line() == "hangs"
        _await(tmp_path, lambda samples: _age_s(samples) > STALE_FROM_S)
        os.kill(process.pid, signal.SIGTERM)
        ended = process.end()
    assert ended.status == -signal.SIGTERM
    stood = places(summary(tmp_path))["main"]
    assert stood[0].startswith("script.py:")
    assert "native code held the GIL" in ended.stderr.decode()


def test_one_that_hears_no_signal_is_killed(tmp_path: Path) -> None:
    ended = run((*RUN, "--max-time", "2s"), write_script(tmp_path, DEAF).name, cwd=tmp_path)
    assert ended.status == 0
    assert not is_alive(int(ended.stdout))
    told = summary(tmp_path)
    assert told["run"]["exit"] | {"after_limit": None} == {
        "status": None,
        "signal": signal.SIGKILL,
        "reason": "limit",
        "detail": "--max-time",
        "after_limit": None,
    }


def test_its_own_handler_has_its_chance_and_a_limit_is_no_failure(tmp_path: Path) -> None:
    ended = run((*RUN, "--max-time", "2s"), write_script(tmp_path, SAVES).name, cwd=tmp_path)
    assert (ended.stdout, ended.status) == (b"saved\n", 0)
    told = summary(tmp_path)
    assert (told["run"]["exit"]["reason"], told["run"]["exit"]["status"]) == ("limit", 5)


def test_one_that_makes_steps_ends_at_a_step_and_has_not_hung(tmp_path: Path) -> None:
    ended = run((*RUN, "--max-time", "8s"), write_script(tmp_path, TRAINS_ON).name, cwd=tmp_path)
    assert (ended.stdout, ended.status) == (b"saved\n", 0)
    told = summary(tmp_path)
    assert (told["run"]["exit"]["reason"], told["run"]["exit"]["status"]) == ("limit", 0)
    assert told["hung"] is None
    assert "No step in the last" not in ended.stderr.decode()


def test_what_is_no_python_ends_too_with_what_it_started(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    ended = run(
        (*RUN, "--max-time", "1s"),
        shell,
        "-c",
        "sleep 1000 & echo $!; wait; echo never",
        cwd=tmp_path,
    )
    assert ended.status == 0
    assert not is_alive(int(ended.stdout))
    assert "sh was ended by --max-time" in ended.stderr.decode()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_hanging_script_that_is_asked_to_end(tmp_path: Path, name: str) -> None:
    write_script(tmp_path, POOL)
    with Running(RUN, "script.py", cwd=tmp_path) as process:
        assert process.line() == "hangs"
        _await(tmp_path, _hangs)
        os.killpg(process.pid, getattr(signal, name))
        ended = process.end()
    assert ended.status == -getattr(signal, name)
    stood = places(summary(tmp_path))
    assert stood["main"][0] == f"script.py:{line_of(POOL, 'training waits here')}"
    assert {"worker 0", "worker 1"} <= set(stood)
    assert "waiting for its first batch" in ended.stderr.decode()


def test_where_it_stood_is_known_when_all_were_killed(tmp_path: Path) -> None:
    write_script(tmp_path, POOL)
    with Running(RUN, "script.py", cwd=tmp_path) as process:
        assert process.line() == "hangs"
        _await(tmp_path, _hangs)
        os.killpg(process.pid, signal.SIGKILL)
        process.end()
    stood = places(summary(tmp_path))
    assert stood["main"][0] == f"script.py:{line_of(POOL, 'training waits here')}"
    page = run(REPORT, "run", cwd=tmp_path).stdout.decode()
    assert "waiting for its first batch" in page


def test_progress_says_where_it_stands_before_the_first_step(tmp_path: Path) -> None:
    write_script(tmp_path, DEAF)
    slow = f"""
from trainprof.cli import app
from trainprof.launch import progress
progress.LINE_EVERY_NS = 100_000_000
app.run_command(["run", "--progress", "-o", "run", {str(tmp_path / "script.py")!r}])
"""
    with Running((sys.executable, "-c", slow), cwd=tmp_path) as process:
        script = int(process.line())
        assert process.process.stderr is not None
        line = f"training thread at script.py:{line_of(DEAF, 'sleep')}"
        shown = b""
        while line.encode() not in shown:
            shown = process.process.stderr.readline()
            assert shown, "it ended"
        assert b"no step yet, " in shown
        os.kill(script, signal.SIGKILL)
        process.end()


def _hangs(samples: list[dict[str, Any]]) -> bool:
    """Whether the main thread and two workers have been seen where they hang."""
    calls = [(one["threads"] or [{}])[0].get("called") for one in samples]
    names = [call[2] for call in calls if call]
    return any("__next__" in name for name in names) and sum("result" in n for n in names) == 2


def _await(cwd: Path, is_there: Callable[[list[dict[str, Any]]], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_there(read_last_stacks(cwd / "run" / "events")):
        assert time.monotonic() < until, "it did not come there"
        time.sleep(0.05)
