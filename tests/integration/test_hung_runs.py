"""A run that hangs ends at its limit, wherever it stands, and the page says where that was."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import DEADLINE_S, Ended, Running, run, write_script
from support.styles import without_compiler

from trainprof.analysis.summary.run import STALE_FROM_S
from trainprof.record.last_stacks import read_last_stacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as Linux ends processes")

RUN = (sys.executable, "-m", "trainprof", "run", "-o", "run")
REPORT = (sys.executable, "-m", "trainprof", "report")

TRAINS = without_compiler("""
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
""")
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
# Python code cannot run: SIGTERM ends it, for it has no handler of Python's. Before that it waits,
# until the sampler's thread has had its turn.
HOLDS_THE_GIL = """
import ctypes, torch
input()
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
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def places(summary: dict[str, Any]) -> dict[str, tuple[str, str]]:
    assert summary["hung"] is not None
    return {row["process"]: (row["site"], row["called"]) for row in summary["hung"]["stood"]}


@dataclass(frozen=True)
class AtLimit:
    """A run that its --max-time ended: its directory, its end, and its summary."""

    cwd: Path
    ended: Ended
    summary: dict[str, Any]

    @property
    def exit(self) -> dict[str, Any]:
        return dict(self.summary["run"]["exit"])


# Limit, and what runs: a script's text, or a command's words.
LIMITED: dict[str, tuple[str, str | list[str]]] = {
    "pool": ("12s", POOL),
    "trains_on": ("12s", TRAINS_ON),
    "deaf": ("2s", DEAF),
    "saves": ("2s", SAVES),
    "shell": ("1s", ["/bin/sh", "-c", "sleep 1000 & echo $!; wait; echo never"]),
}


@pytest.fixture(scope="module")
def at_limit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AtLimit]:
    """Runs that end at their limit, all of them at the same time: most only wait for it."""

    def run_limited(name: str, limit: str, target: str | list[str]) -> AtLimit:
        cwd = tmp_path_factory.mktemp(name)
        words = target if isinstance(target, list) else [write_script(cwd, target).name]
        ended = run((*RUN, "--max-time", limit), *words, cwd=cwd)
        return AtLimit(cwd, ended, summary(cwd))

    tmp_path_factory.getbasetemp()  # threads would each make their own
    with ThreadPoolExecutor(len(LIMITED)) as pool:
        futures = {
            name: pool.submit(run_limited, name, *limited) for name, limited in LIMITED.items()
        }
    runs = {name: future.result() for name, future in futures.items()}
    for name in ("pool", "trains_on"):
        if not runs[name].ended.stdout:  # imports alone take longer where the machine is busy
            runs[name] = run_limited(name, "30s", LIMITED[name][1])
    return runs


def waits_for(summary: dict[str, Any]) -> str | None:
    """Returns what the main process waited for."""
    (main,) = [row for row in summary["hung"]["stood"] if row["process"] == "main"]
    return main["waits_for"]


def test_a_limit_is_no_failure_and_is_named(at_limit: dict[str, AtLimit]) -> None:
    for name, hung in at_limit.items():
        assert hung.ended.status == 0, name
        assert (hung.exit["reason"], hung.exit["detail"]) == ("limit", "--max-time"), name


def test_workers_and_the_thread_that_waits_for_them(at_limit: dict[str, AtLimit]) -> None:
    hung = at_limit["pool"]
    hangs, waits = (line_of(POOL, words) for words in ("it hangs here", "training waits here"))
    stood = places(hung.summary)
    assert set(stood) == {"main", "worker 0", "worker 1"}
    assert stood["worker 0"] == stood["worker 1"]
    assert stood["worker 0"][0] == f"script.py:{hangs}"
    assert stood["worker 0"][1].endswith("result")
    if stood["main"][0] == f"script.py:{waits}":  # it may not have come so far
        assert waits_for(hung.summary) == "its first batch"
    assert not [x for x in psutil.process_iter(["cwd"]) if x.info["cwd"] == str(hung.cwd)]
    assert read_last_stacks(hung.cwd / "run" / "events") == []


def test_one_that_hears_no_signal_is_killed(at_limit: dict[str, AtLimit]) -> None:
    assert not is_alive(int(at_limit["deaf"].ended.stdout))
    assert (at_limit["deaf"].exit["status"], at_limit["deaf"].exit["signal"]) == (None, 9)


def test_its_own_handler_has_its_chance(at_limit: dict[str, AtLimit]) -> None:
    assert at_limit["saves"].ended.stdout == b"saved\n"
    assert at_limit["saves"].exit["status"] == 5


def test_one_that_makes_steps_ends_at_a_step_and_has_not_hung(
    at_limit: dict[str, AtLimit],
) -> None:
    trained = at_limit["trains_on"]
    assert trained.ended.stdout == b"saved\n"
    assert trained.exit["status"] == 0
    assert trained.summary["hung"] is None


def test_what_is_no_python_ends_too_with_what_it_started(at_limit: dict[str, AtLimit]) -> None:
    assert not is_alive(int(at_limit["shell"].ended.stdout))


def _age_s(samples: list[dict[str, Any]]) -> float:
    return min((time.perf_counter_ns() - x["at_ns"] for x in samples), default=0) * 1e-9


def test_native_code_that_holds_the_gil(tmp_path: Path) -> None:
    write_script(tmp_path, HOLDS_THE_GIL)
    with Running(RUN, "script.py", cwd=tmp_path) as process:
        _await(tmp_path, bool)
        assert process.process.stdin is not None
        process.process.stdin.write(b"\n")
        process.process.stdin.flush()
        _await(tmp_path, lambda samples: _age_s(samples) > STALE_FROM_S)
        os.kill(process.pid, signal.SIGTERM)
        ended = process.end()
    assert ended.status == -signal.SIGTERM
    (main,) = summary(tmp_path)["hung"]["stood"]
    assert main["site"].startswith("script.py:")
    assert main["age_s"] > STALE_FROM_S


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_hanging_script_that_is_asked_to_end(tmp_path: Path, name: str) -> None:
    write_script(tmp_path, POOL)
    with Running(RUN, "script.py", cwd=tmp_path) as process:
        assert process.line() == "hangs"
        _await(tmp_path, _hangs)
        os.killpg(process.pid, getattr(signal, name))
        assert process.end().status == -getattr(signal, name)
    report = summary(tmp_path)
    stood = places(report)
    assert stood["main"][0] == f"script.py:{line_of(POOL, 'training waits here')}"
    assert {"worker 0", "worker 1"} <= set(stood)
    assert waits_for(report) == "its first batch"


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
    calls = [(x["threads"] or [{}])[0].get("called") for x in samples]
    names = [call[2] for call in calls if call]
    return any("__next__" in name for name in names) and sum("result" in n for n in names) == 2


def _await(cwd: Path, is_there: Callable[[list[dict[str, Any]]], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_there(read_last_stacks(cwd / "run" / "events")):
        assert time.monotonic() < until, "it did not come there"
        time.sleep(0.05)
