"""However a script ends, trainprof ends the same way, and what signals do stays the same."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import DEADLINE_S, PYTHON, TRAINPROF, OnTerminal, Running, run, write_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")

ENDINGS = {
    "return": "print('done')",
    "exit 3": "import sys; print('x'); sys.exit(3)",
    "exit with text": "import sys; sys.exit('some reason')",
    "exit with none": "import sys; sys.exit(None)",
    "exit with a big int": "import sys; sys.exit(2**40 + 5)",
    "exit 130": "import sys; sys.exit(130)",
    "exception": "def f():\n    raise KeyError('lr')\nf()",
    "os._exit": "import os; os.write(1, b'x'); os._exit(4)",
    "abort": "import os; os.abort()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "sigterm": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sigkill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "sigint": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "stop of its group": "import os, signal; os.kill(0, signal.SIGTERM); signal.pause()",
    "syntax error": "def broken(:\n",
}

REASONS = {
    "return": "completed",
    "exit with none": "completed",
    "exception": "exception",
    "abort": "signal",
    "sigterm": "signal",
    "sigkill": "killed",
    "sigint": "interrupted",
    "exit 130": "interrupted",
}

# Says what it gets until its stdin ends.
COUNTING = """
import os, signal, sys
counts = {}
def handle(number, frame):
    counts[number] = counts.get(number, 0) + 1
    # Not by print: a signal that comes while a print flushes would end the script.
    os.write(1, f"{signal.Signals(number).name} {counts[number]}\\n".encode())
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
    signal.signal(getattr(signal, name), handle)
print("ready", os.getpid(), flush=True)
sys.stdin.read()
print(sorted(counts.values()))
sys.exit(7)
"""

# signal.pause() would wait for ever for a signal that came just before it.
WAITING = """
import os, time
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""


def manifest(cwd: Path) -> dict[str, Any]:
    path = cwd / "trainprof-runs" / "latest" / "manifest.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends_as_plain_python_does(tmp_path: Path, ending: str) -> None:
    script = write_script(tmp_path, ENDINGS[ending])
    ends = []
    for launcher in (PYTHON, TRAINPROF):
        with Running(launcher, script, cwd=tmp_path) as process:  # in a group of its own
            ends.append(process.end())
    bare, ours = ends
    assert (ours.stdout, ours.status) == (bare.stdout, bare.status)
    assert ours.stderr.startswith(bare.stderr)
    written = manifest(tmp_path)["exit"]
    number = -bare.status if bare.status < 0 else None
    status = bare.status if bare.status >= 0 else None
    assert (written["status"], written["signal"]) == (status, number)
    assert written["reason"] == REASONS.get(ending, written["reason"])
    assert written["reason"] != "running"


def test_stdin_and_stdout_belong_to_the_script(tmp_path: Path) -> None:
    text = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    script = write_script(tmp_path, text)
    sent = bytes(range(256)) * 1000
    assert run(TRAINPROF, script, cwd=tmp_path, stdin=sent).stdout == sent[::-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "x", "--help", "--quiet", "--debug", "", " ", "a b", "*", "é\udcff", "--lr=1"],
        ["--", "-m", "os", "--"],
    ],
)
def test_arguments_reach_the_script_untouched(tmp_path: Path, arguments: list[str]) -> None:
    script = write_script(tmp_path, "import sys; print(ascii((sys.argv, sys.path[0], __file__)))")
    bare = run(PYTHON, script.name, *arguments, cwd=tmp_path)
    assert run(TRAINPROF, script.name, *arguments, cwd=tmp_path).stdout == bare.stdout
    assert run(TRAINPROF, "--", script.name, *arguments, cwd=tmp_path).stdout == bare.stdout
    as_module = run(PYTHON, "-m", "script", *arguments, cwd=tmp_path)
    assert run(TRAINPROF, "-m", "script", *arguments, cwd=tmp_path).stdout == as_module.stdout


INHERITS = """
import os, sys
INTERNAL = 0b11 << 31  # 32 and 33 are the C library's own, which its posix_spawn ignores
with open("/proc/self/status") as status:
    lines = [line.split() for line in status]
for name, value in (line for line in lines if line[0] in ("SigBlk:", "SigIgn:", "SigCgt:")):
    print(name, hex(int(value, 16) & ~INTERNAL))
print(sorted(os.listdir("/proc/self/fd")), os.getcwd(), os.nice(0), os.umask(0))
print({name: value for name, value in os.environ.items()
       if not name.startswith(("TRAINPROF_", "PYTHONPATH"))})
"""


def test_what_the_process_inherits_is_as_without_us(tmp_path: Path) -> None:
    script = write_script(tmp_path, INHERITS)
    bare, ours = (run(launcher, script, cwd=tmp_path) for launcher in (PYTHON, TRAINPROF))
    assert ours.stdout == bare.stdout


# -- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_for_group", [False, True])
def test_a_signal_reaches_the_script_exactly_once(tmp_path: Path, is_for_group: bool) -> None:
    script = write_script(tmp_path, COUNTING)
    # SIGUSR2 last: as a marker it would be lost where one for the group still waits for trainprof.
    counts = dict.fromkeys(("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"), 0)
    with Running(TRAINPROF, script, cwd=tmp_path) as process:

        def send(how: Callable[[int, int], None], name: str) -> None:
            how(process.pid, getattr(signal, name))
            counts[name] += 1
            assert process.line() == f"{name} {counts[name]}"

        assert process.line().startswith("ready")
        for name in list(counts):
            marker = "SIGUSR2" if name != "SIGUSR2" else "SIGUSR1"
            for _ in range(2):
                send(os.killpg if is_for_group else os.kill, name)
                # Passed on in the order they came: had the first been passed on twice, it were
                # seen.
                send(os.kill, marker)
        ended = process.end()
    assert (ended.stdout, ended.status) == (f"{sorted(counts.values())}\n".encode(), 7)
    assert manifest(tmp_path)["exit"]["status"] == 7


@pytest.mark.parametrize(
    ("name", "is_for_group"),
    [
        *((name, False) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1")),
        # Python has a handler for one of these, and the kernel ends the process by the other.
        *((name, True) for name in ("SIGINT", "SIGTERM")),
    ],
)
def test_a_signal_that_nobody_handles_ends_both(
    tmp_path: Path, name: str, is_for_group: bool
) -> None:
    script = write_script(tmp_path, WAITING)
    ended = []
    for launcher in (PYTHON, TRAINPROF):
        with Running(launcher, script, cwd=tmp_path) as process:
            process.line()
            (os.killpg if is_for_group else os.kill)(process.pid, getattr(signal, name))
            ended.append(process.end())
    bare, ours = ended
    assert ours.status == bare.status == -getattr(signal, name)
    assert ours.stderr.count(b"KeyboardInterrupt") == (1 if name == "SIGINT" else 0)


SAVES_WHEN_ASKED = """
import sys, time
def wait_for_ctrl_c(word):
    try:
        print(word, flush=True)
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        pass
wait_for_ctrl_c("ready")
wait_for_ctrl_c("saving")
print("leaving", flush=True)
sys.exit(9)
"""


@pytest.mark.parametrize(
    ("text", "awaited", "status", "shown"),
    [
        (WAITING, (b"ready",), -signal.SIGINT, b"KeyboardInterrupt"),
        (SAVES_WHEN_ASKED, (b"ready", b"saving"), 9, b"leaving"),
    ],
    ids=["once", "twice"],
)
def test_ctrl_c_at_a_terminal(
    tmp_path: Path, text: str, awaited: tuple[bytes, ...], status: int, shown: bytes
) -> None:
    script = write_script(tmp_path, text)
    for launcher in (PYTHON, TRAINPROF):
        with OnTerminal(launcher, script, cwd=tmp_path) as terminal:
            for word in awaited:
                terminal.await_text(word)
                terminal.type(b"\x03")
            assert terminal.end() == status
            assert terminal.shown.count(shown) == 1
    assert manifest(tmp_path)["exit"]["reason"] == "interrupted"


def test_a_terminal_that_hangs_up_tells_the_script(tmp_path: Path) -> None:
    """The kernel tells the session's leader alone, which is trainprof."""
    heard = tmp_path / "told"
    text = f"""
import os, signal, time
def handle(number, frame):
    with open({str(heard)!r}, "w") as file:
        file.write("hung up")
    os._exit(0)
signal.signal(signal.SIGHUP, handle)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    script = write_script(tmp_path, text)
    with OnTerminal(TRAINPROF, script, cwd=tmp_path) as terminal:
        terminal.await_text(b"ready\r\n")  # whole: a write cut by the hang-up would raise
        terminal.hang_up()
        assert terminal.process.wait(DEADLINE_S) == 0
    assert heard.read_text() == "hung up"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_the_report_is_made_ends_it_as_the_script_ended(
    tmp_path: Path, name: str
) -> None:
    script = write_script(tmp_path, "import sys; sys.exit(3)")
    slow_report = f"""
import time
from trainprof.cli import app, run
def report(*arguments, **options):
    print("reporting", flush=True)
    while True:
        time.sleep(0.01)
run._report = report
app.run_command(["run", {str(script)!r}])
"""
    with Running((*PYTHON, "-c", slow_report), cwd=tmp_path) as process:
        assert process.line() == "reporting"
        os.kill(process.pid, signal.SIGUSR1)  # meant for a script that is gone: no reason to end
        os.kill(process.pid, getattr(signal, name))
        ended = process.end()
    assert ended.status == 3
    assert ended.stderr.startswith(b"trainprof: report left out\nhint: trainprof report /")
    assert manifest(tmp_path)["exit"]["status"] == 3


# -- the witness --------------------------------------------------------------------------------


def test_the_witness_goes_and_the_script_stays_when_the_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    script = write_script(tmp_path, COUNTING)
    with Running(TRAINPROF, script, cwd=tmp_path) as process:
        script_pid = int(process.line().split()[1])
        witness = _witness(process.pid, script_pid)
        os.kill(process.pid, signal.SIGKILL)
        witness.wait(DEADLINE_S)
        os.kill(script_pid, signal.SIGUSR1)
        assert process.line() == "SIGUSR1 1"
        assert process.end().stdout == b"[1]\n"
    assert manifest(tmp_path)["exit"]["reason"] == "running"


def test_the_witness_of_one_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, COUNTING)
    with Running(TRAINPROF, script.name, "--lr", "1", cwd=tmp_path) as process:
        script_pid = int(process.line().split()[1])
        witness = _witness(process.pid, script_pid)
        assert psutil.Process(script_pid).children() == []
        # It is named after the script and not after us.
        assert witness.cmdline()[:4] == ["witness", "script.py", "--lr", "1"]
        assert witness.name() == psutil.Process(script_pid).name()
        # As `pkill -f "trainprof run"` would: the supervisor alone.
        os.kill(process.pid, signal.SIGTERM)
        assert process.line() == "SIGTERM 1"
        # `pkill -f script.py`, systemd and SLURM walk over processes instead of naming the group.
        for pid in (process.pid, witness.pid, script_pid):
            os.kill(pid, signal.SIGQUIT)
        assert process.line() == "SIGQUIT 1"
        os.kill(process.pid, signal.SIGUSR1)
        assert process.line() == "SIGUSR1 1"  # it was not doubled
        # One for the group and one for us alone that wait together: taken in the order of their
        # numbers, and told apart.
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.killpg(process.pid, signal.SIGUSR2)
        assert process.line() == "SIGUSR2 1"
        os.kill(process.pid, signal.SIGHUP)
        os.kill(process.pid, signal.SIGCONT)
        assert process.line() == "SIGHUP 1"
        # Had the first been passed on too, it were seen before this one.
        os.kill(process.pid, signal.SIGTERM)
        assert process.line() == "SIGTERM 2"
        assert process.end().stdout == b"[1, 1, 1, 1, 2]\n"
        assert not witness.is_running()


def test_signals_are_passed_on_without_a_witness(tmp_path: Path) -> None:
    script = write_script(tmp_path, COUNTING)
    with Running(TRAINPROF, script, cwd=tmp_path) as process:
        script_pid = int(process.line().split()[1])
        _witness(process.pid, script_pid).kill()
        os.kill(process.pid, signal.SIGTERM)
        assert process.line() == "SIGTERM 1"
        assert process.end().status == 7


def _witness(supervisor_pid: int, script_pid: int) -> psutil.Process:
    children = psutil.Process(supervisor_pid).children()
    (witness,) = [child for child in children if child.pid != script_pid]
    return witness


# -- what is refused, and what is kept to ourselves ---------------------------------------------


def _refusal(cwd: Path, *words: str | Path) -> tuple[int, list[str]]:
    ended = run(TRAINPROF, *words, cwd=cwd)
    assert ended.stdout == b""
    return ended.status, ended.stderr.decode().splitlines()


def test_what_cannot_be_run_is_told_in_one_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for word, expected in (("nowhere.py", 127), ("no_such_command", 127), ("folder", 126)):
        status, (message, hint) = _refusal(tmp_path, word)
        assert status == expected
        assert message.startswith("trainprof: ")
        assert word in message
        assert hint.startswith("hint: ")
    assert not (tmp_path / "trainprof-runs").exists()
    assert _refusal(tmp_path)[0] == 125
    assert _refusal(tmp_path, "--no-such-option", "x.py")[0] == 125


def test_a_link_is_refused_and_what_it_points_at_untouched(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print('ran')")
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "link").symlink_to(victim)
    assert _refusal(tmp_path, "-o", "link", script)[0] == 125
    assert list(victim.iterdir()) == []


def test_a_command_that_is_not_there_any_more_cannot_be_started(tmp_path: Path) -> None:
    command = write_script(tmp_path, "#!/no/such/interpreter\n", "odd")
    command.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "elsewhere").mkdir()
    ended = run(TRAINPROF, "odd", cwd=tmp_path / "elsewhere", env=env)
    assert ended.status == 126
    assert ended.stderr.startswith(b"trainprof: ")
