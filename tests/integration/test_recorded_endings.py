"""However a script ends and whatever it does to its surroundings, what was recorded is reported.

Each script times its forwards itself; the report must know its steps, that time, and how it ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.processes import DEADLINE_S, TRAINPROF, OnTerminal, Running, run, write_script
from support.styles import PREAMBLE, ROOT, Style, missed_costs

from trainprof.analysis.summary.run_summary import RECORDING_STOPPED
from trainprof.cli.app import run_command
from trainprof.record.schema import CHUNK_BYTES, RECORD_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")

STEPS = 6

# `train()` is one epoch of STEPS steps.
TRAINING = f"""{PREAMBLE}
import os, signal, sys
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader({STEPS})

def train():
    for x, y in loader:
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad()
        mse(p, y).backward()
        optimizer.step()

def tell():
    print(json.dumps({{"seconds": truth, "counts": counts}}), flush=True)

train()
"""


Summary = dict[str, Any]


def end_of(summary: Summary) -> tuple[str, int | None, int | None]:
    """Returns reason, status and signal."""
    end = summary["run"]["exit"]
    return end["reason"], end["status"], end["signal"]


def reported(directory: Path) -> Summary:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run_command(["report", str(directory), "--format", "json"]) == 0
    assert err.getvalue() == ""
    return dict(json.loads(out.getvalue()))


def checked(directory: Path, output: bytes | str, *, epochs: int = 1) -> Summary:
    """Returns what is reported of a run; asserts all steps, and that the ledger closes.

    What missed of its costs is kept for `prove`.
    """
    summary = reported(directory / "run")
    training, ledger = summary["training"], summary["ledger"]
    truth = truth_in(output)
    assert (training["steps"], training["epochs"]) == (STEPS * epochs, epochs)
    assert truth["counts"]["forward"] == STEPS * epochs
    assert sum(ledger["seconds"].values()) == pytest.approx(ledger["wall_s"], rel=0.005)
    summary["missed"] = missed_costs(Style("", STEPS, STEPS, 1), summary, truth)
    return summary


def truth_in(output: bytes | str) -> dict[str, Any]:
    text = output if isinstance(output, str) else output.decode()
    truths = [json.loads(line) for line in text.splitlines() if line.startswith('{"seconds"')]
    return dict(truths[-1])


def prove(attempt: Callable[[Path], Summary], tmp_path: Path) -> Summary:
    """Makes a run and compares its costs; again where the scheduler came between the clocks."""
    for number in attempts():
        directory = tmp_path / str(number)
        directory.mkdir()
        summary = attempt(directory)
        if not summary["missed"]:
            return summary
    pytest.fail(str(summary["missed"]))


def prove_run(
    tmp_path: Path,
    text: str,
    *,
    status: int = 0,
    epochs: int = 1,
    prepare: Callable[[Path], dict[str, str]] = lambda directory: {},
) -> Summary:
    """Runs a training to its end and proves it; `prepare` gives the environment in a directory."""

    def attempt(directory: Path) -> Summary:
        env = prepare(directory)
        script = write_script(directory, f"{TRAINING}\n{text}")
        ended = run(TRAINPROF, "-o", "run", script.name, cwd=directory, env=env)
        assert ended.status == status, ended.stderr
        return checked(directory, ended.stdout, epochs=epochs)

    return prove(attempt, tmp_path)


def prove_waiting(
    tmp_path: Path, act: Callable[[Running, Path], bytes | str], *, epochs: int = 1
) -> Summary:
    """Proves a training that waits for its stdin; `act` then acts, and gives its stdout."""

    def attempt(directory: Path) -> Summary:
        script = write_script(directory, WAITING)
        with Running(TRAINPROF, "-o", "run", script.name, cwd=directory) as process:
            output = act(process, directory)
        return checked(directory, output, epochs=epochs)

    return prove(attempt, tmp_path)


# -- ends that the script makes itself ------------------------------------------------------------

WORKER_FAILS = """
class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError("no such picture")

for _ in DataLoader(Broken(), num_workers=1):
    pass
"""

WORKER_IS_KILLED = """
class Patient(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index:
            signal.pause()
        return torch.zeros(1)

batches = iter(DataLoader(Patient(), num_workers=1, prefetch_factor=1))
next(batches)
os.kill(batches._workers[0].pid, signal.SIGKILL)
next(batches)
"""

ENDINGS = {
    "an exception": ("raise KeyError('lr')", 1, "exception", "KeyError"),
    "an exception in a worker": (WORKER_FAILS, 1, "exception", "ValueError"),
    "SIGKILL of a worker": (WORKER_IS_KILLED, 1, "exception", "RuntimeError"),
    "os._exit": ("os._exit(4)", 4, "completed", None),
    "os.abort": ("os.abort()", -signal.SIGABRT, "signal", None),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", -11, "signal", None),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.proves("Endings", name)) for name in ENDINGS]
)
def test_what_was_recorded_until_the_end(tmp_path: Path, name: str) -> None:
    action, status, reason, detail = ENDINGS[name]
    summary = prove_run(tmp_path, f"tell()\n{action}\n", status=status)
    by_signal = (None, -status) if status < 0 else (status, None)
    assert end_of(summary) == (reason, *by_signal)
    if detail is not None:
        assert summary["run"]["exit"]["detail"] == detail


# -- ends that come from outside ------------------------------------------------------------------

# Trains, then waits for its stdin to end, and trains on.
WAITING = f"{TRAINING}\ntell()\nsys.stdin.read()\ntrain()\ntell()\n"


def pid_of_script(directory: Path) -> int:
    manifest = json.loads((directory / "run" / "manifest.json").read_text())
    return int(manifest["script_pid"])


def ends_by(*texts: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.proves("Endings", text) for text in texts]


# To the kernel, a signal to itself is one to the script alone.
@pytest.mark.parametrize(
    ("to_script", "number"),
    [
        pytest.param(False, signal.SIGTERM, marks=ends_by("SIGTERM")),
        pytest.param(False, signal.SIGHUP, marks=ends_by("SIGHUP")),
        pytest.param(
            *(True, signal.SIGTERM),
            marks=ends_by("SIGTERM to itself", "SIGTERM to the script alone"),
        ),
        pytest.param(
            *(True, signal.SIGKILL), marks=ends_by("SIGKILL of itself", "SIGKILL of the script")
        ),
    ],
)
def test_a_signal_from_outside(tmp_path: Path, to_script: bool, number: signal.Signals) -> None:
    def act(process: Running, directory: Path) -> str:
        line = process.line()
        os.kill(pid_of_script(directory) if to_script else process.pid, number)
        # Its stdin stays open until then: at its end the script would train on.
        assert process.process.wait(DEADLINE_S) == -number
        return line

    reason = "killed" if number == signal.SIGKILL else "signal"
    assert end_of(prove_waiting(tmp_path, act)) == (reason, None, number)


@pytest.mark.proves("Endings", "KeyboardInterrupt")
@pytest.mark.proves("Endings", "Ctrl-C")
@pytest.mark.proves("Endings", "Ctrl-C twice")
def test_ctrl_c(tmp_path: Path) -> None:
    """The first is caught by the script, and the second ends it."""
    action = """
for left in (2, 1):
    try:
        print("waiting", left, flush=True)
        while True:
            time.sleep(0.01)  # a signal just before signal.pause() would be lost to it
    except KeyboardInterrupt:
        if left == 1:
            raise
"""

    def attempt(directory: Path) -> Summary:
        script = write_script(directory, f"{TRAINING}\ntell()\n{action}")
        with OnTerminal(TRAINPROF, "-o", "run", script.name, cwd=directory) as terminal:
            for left in (2, 1):
                terminal.await_text(f"waiting {left}".encode())
                terminal.type(b"\x03")
            assert terminal.end() == -signal.SIGINT
        return checked(directory, terminal.shown)

    assert end_of(prove(attempt, tmp_path))[0] == "interrupted"


@pytest.mark.proves("Endings", "SIGKILL of trainprof: the script trains on")
def test_the_script_trains_on_when_trainprof_is_killed(tmp_path: Path) -> None:
    def act(process: Running, _: Path) -> bytes:
        process.line()
        os.kill(process.pid, signal.SIGKILL)
        return process.end().stdout  # the end of its output is that of the script

    assert end_of(prove_waiting(tmp_path, act, epochs=2)) == ("completed", None, None)


@pytest.mark.proves("Endings", "SIGKILL of both")
def test_both_are_killed(tmp_path: Path) -> None:
    def act(process: Running, directory: Path) -> str:
        line = process.line()
        for pid in (process.pid, pid_of_script(directory)):
            os.kill(pid, signal.SIGKILL)
        process.end()
        return line

    assert end_of(prove_waiting(tmp_path, act)) == ("unknown", None, None)


@pytest.mark.proves("Endings", "return")
@pytest.mark.proves("Endings", "not yet: a run is reported while it goes on")
def test_a_run_that_still_goes_on(tmp_path: Path) -> None:
    """Its directory is refused to another one; then it returns."""

    def act(process: Running, directory: Path) -> bytes:
        line = process.line()
        assert run(TRAINPROF, "-o", "run", "script.py", cwd=directory).status == 125
        assert pid_of_script(directory) > 0
        assert end_of(checked(directory, line))[0] == "running"
        ended = process.end()
        assert ended.status == 0
        return ended.stdout

    assert end_of(prove_waiting(tmp_path, act, epochs=2)) == ("completed", 0, None)


# -- what scripts do to their surroundings --------------------------------------------------------

# Threads of the last loader's queues close their pipes late; by then the numbers may be reused.
CLOSES_FILES = """
import threading
for thread in threading.enumerate():
    if thread.name == "QueueFeederThread":
        thread.join()
os.closerange(3, 4096)
with open("own", "w") as own:  # gets a number that we may think ours
    train()
    own.write("the script's")
"""

FORKS = """
child = os.fork()
train()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""

REPLACES_STREAMS = """
import io
kept = sys.stdout, sys.stderr
sys.stdout, sys.stderr = io.StringIO(), None
train()
sys.stdout, sys.stderr = kept
"""

CLEARS_ENVIRONMENT = """
os.environ.clear()
loader = make_loader(6, num_workers=1)
train()
"""

# In this order: each of them trains, and is still there for the next.
SURROUNDINGS = REPLACES_STREAMS + CLEARS_ENVIRONMENT + FORKS + CLOSES_FILES


@pytest.mark.proves("Endings", "sys.exit(n)")
@pytest.mark.proves("Endings", "a script that forks without exec")
@pytest.mark.proves("Endings", "a script that clears os.environ")
@pytest.mark.proves("Endings", "a script that replaces sys.stdout and sys.stderr")
@pytest.mark.proves("Endings", "a script that closes all descriptors")
def test_what_a_script_does_to_its_process(tmp_path: Path) -> None:
    summary = prove_run(tmp_path, f"{SURROUNDINGS}\ntell()\nsys.exit(3)\n", status=3, epochs=5)
    assert {own.read_text() for own in tmp_path.glob("*/own")} == {"the script's"}
    assert end_of(summary) == ("completed", 3, None)
    assert summary["faults"] == []
    (apart,) = summary["trained_apart"]
    assert apart["steps"] == STEPS


@pytest.mark.proves("Endings", "a script that becomes a daemon: its training is reported")
def test_a_daemon(tmp_path: Path) -> None:
    become_daemon = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
"""

    def attempt(directory: Path) -> Summary:
        script = write_script(directory, become_daemon + WAITING)
        with Running(TRAINPROF, "-o", "run", script.name, cwd=directory) as process:
            line = process.line()
            assert process.process.wait(DEADLINE_S) == 0
            assert end_of(checked(directory, line))[:2] == ("running", 0)
            ended = process.end()
        return checked(directory, ended.stdout, epochs=2)

    assert end_of(prove(attempt, tmp_path))[0] == "completed"


# -- what happens to the run directory ------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk))
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.mark.proves("Endings", "a full disk: training goes on, what fits is reported")
def test_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """The log's next chunk cannot be had; its first has all up to there: 4 events a step."""
    fill = """
import itertools
with open(os.path.join(os.environ["TRAINPROF_DIR"], os.pardir, "filler"), "wb", 0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as error:
        assert error.errno == 28
"""
    many_steps = """
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, reached = torch.zeros(1, 1), []
for step in range(9000):
    with timed("forward"):
        p = model(x)
    p.backward()
    optimizer.step()
    optimizer.zero_grad()
    reached.append(truth["forward"])
tell()
print("reached", json.dumps(reached))
"""
    script = write_script(tmp_path, f"{TRAINING}{fill}{many_steps}")
    command = (sys.executable, "-m", "trainprof", "run", "-o", str(small_disk / "run"))
    for _ in attempts():
        for left in small_disk.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        ended = run(command, script.name, cwd=tmp_path)
        assert ended.status == 0
        assert b"summary.json cannot be written: No space left on device" in ended.stderr
        summary = reported(small_disk / "run")
        assert any(fault.startswith(RECORDING_STOPPED) for fault in summary["faults"])
        assert end_of(summary)[:2] == ("completed", 0)
        steps = summary["training"]["steps"]
        assert CHUNK_BYTES / (5 * RECORD_BYTES) < steps < STEPS + 9000
        reached = json.loads(ended.stdout.decode().rpartition("reached ")[2])[steps - STEPS - 1]
        seconds = summary["ledger"]["seconds"]["forward"]
        if seconds == pytest.approx(reached, rel=0.25):
            return
    raise AssertionError(seconds, reached)


@pytest.mark.proves("Endings", "the run directory removed: training goes on")
def test_a_run_directory_that_is_removed(tmp_path: Path) -> None:
    remove = "import shutil; shutil.rmtree(os.environ['TRAINPROF_DIR'])"
    script = write_script(tmp_path, f"{TRAINING}\n{remove}\ntrain()\ntell()\nsys.exit(3)\n")
    command = (sys.executable, "-m", "trainprof", "run", "-o", str(tmp_path / "run"))
    ended = run(command, script.name, cwd=tmp_path)
    assert ended.status == 3
    assert truth_in(ended.stdout)["counts"]["forward"] == 2 * STEPS
    assert ended.stderr.decode().splitlines() == [
        "trainprof: no report: the run directory was removed while the script ran",
        f"hint: it was {tmp_path / 'run'}",
    ]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a directory one that nobody can write any more, root neither."""
    mounted: list[Path] = []

    def make(directory: Path) -> None:
        if os.geteuid() != 0:
            for path in (directory / "events", directory / "samples", directory):
                path.chmod(0o500)
            return
        _mount("--bind", str(directory), str(directory))
        mounted.append(directory)
        _mount("-o", "remount,bind,ro", str(directory))

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
    for path in (tmp_path / "run", tmp_path / "run" / "events", tmp_path / "run" / "samples"):
        with contextlib.suppress(OSError):
            path.chmod(0o700)


@pytest.mark.proves("Endings", "the run directory made read-only")
def test_a_run_directory_that_becomes_read_only(
    tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    script = write_script(tmp_path, WAITING)
    command = (sys.executable, "-m", "trainprof", "run", "-o", str(tmp_path / "run"))
    with Running(command, script.name, cwd=tmp_path) as process:
        process.line()
        read_only(tmp_path / "run")
        ended = process.end()
    assert ended.status == 0
    assert b"summary.json cannot be written: " in ended.stderr
    assert end_of(checked(tmp_path, ended.stdout, epochs=2))[0] == "completed"


# -- what hangs, and what turns back --------------------------------------------------------------


def _with_module(directory: Path, text: str) -> dict[str, str]:
    """As sitecustomize: another module on PYTHONPATH would come behind ours."""
    folder = directory / "modules"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.proves("Endings", "a GPU driver that hangs: the run ends at once")
def test_a_driver_that_never_answers_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The script ends when the sampler hangs for good: waiting for it would take for ever."""

    def prepare(directory: Path) -> dict[str, str]:
        hanging = tmp_path / "hanging"
        hanging.unlink(missing_ok=True)
        os.mkfifo(hanging)
        return _with_module(
            directory,
            f"import sys, threading, types\n"
            f"def nvmlInit():\n"
            f"    open({str(hanging)!r}, 'w').close()\n"
            f"    threading.Event().wait()\n"
            f"sys.modules['pynvml'] = types.ModuleType('pynvml')\n"
            f"sys.modules['pynvml'].nvmlInit = nvmlInit\n",
        )

    await_hang = f"open({str(tmp_path / 'hanging')!r}).read()"
    summary = prove_run(tmp_path, f"{await_hang}\ntell()\n", prepare=prepare)
    assert end_of(summary)[0] == "completed"
    assert summary["system"]["gpus"] == []
    assert summary["system"]["samples"] > 0


@pytest.mark.proves("Endings", "a clock that is set back")
def test_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    """Every look at the time of day, of the script and of trainprof, gives an hour earlier."""
    backwards = """
import itertools, time
hours, now, now_ns = itertools.count().__next__, time.time, time.time_ns
time.time = lambda: now() - 3600 * hours()
time.time_ns = lambda: now_ns() - 3600 * 10**9 * hours()
"""

    summary = prove_run(
        tmp_path,
        "assert time.time() > time.time() + 1\ntell()\n",
        prepare=lambda directory: _with_module(directory, backwards),
    )
    wall_s = summary["run"]["wall_s"]
    assert 0 < summary["phases"]["training_s"] < wall_s < DEADLINE_S
    assert summary["ledger"]["wall_s"] == pytest.approx(wall_s)
    (epoch,) = summary["epochs"]
    assert 0 < epoch["seconds"] < wall_s
    assert summary["system"]["cpu"]["tree_percent"]["mean"] > 0
