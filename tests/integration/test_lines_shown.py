"""`trainprof lines`, from a recording to what is on stdout, in a file, on a terminal."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from support.events import MS
from support.line_runs import LineRun
from support.processes import PYTHON, TRAINPROF, Ended, OnTerminal, run, write_script

LINES = (sys.executable, "-m", "trainprof", "lines")
REPORT = (sys.executable, "-m", "trainprof", "report")
LINE_PROFILER = (sys.executable, "-m", "line_profiler")

DATA = '''\
import time


class Photos:
    def __getitem__(self, index):
        """Sleeps as a slow disk would."""
        time.sleep(0.005)
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass
        return index

    def never(self):
        return None
'''
GETITEM = {7: (400, 400 * 5 * MS), 8: (400, 400 * 700), 9: (80_000, 1_200 * MS), 11: (400, 90_000)}


@pytest.fixture
def recorded(tmp_path: Path) -> LineRun:
    """A run of four workers with the same times each, and a main process with none."""
    made = LineRun(tmp_path)
    made.source("data.py", DATA)
    main = made.process(overhead_ns=120)
    main.function("data.py", 5, "Photos.__getitem__", "dataset")
    main.function("data.py", 13, "Photos.never", "-f")
    for number in range(4):
        worker = made.process(worker=number, overhead_ns=120)
        function = worker.function("data.py", 5, "Photos.__getitem__", "dataset")
        worker.lines(function, {line: (hits // 4, ns // 4) for line, (hits, ns) in GETITEM.items()})
    made.write()
    return made


def shown(made: LineRun, *words: str | Path, launcher: tuple[str, ...] = LINES) -> Ended:
    return run(launcher, *words, cwd=made.parent)


@pytest.mark.proves("Line times", "kernprof's table to a byte, read by its parsers")
def test_off_a_terminal_stdout_is_line_profilers_own(recorded: LineRun) -> None:
    ours = shown(recorded, "run", "--lprof")
    assert ours.status == 0
    written = recorded.directory.path / "lines.lprof"
    assert f"trainprof: wrote {written}\n".encode() in ours.stderr
    for options in ([], ["-u", "1e-3", "-z", "-t"]):
        theirs = shown(recorded, *options, written, launcher=LINE_PROFILER)
        again = shown(recorded, *options, "run")
        assert again.stdout == theirs.stdout
    assert b"     7       400    2000000.0   5000.0     62.5          time.sl" in ours.stdout


@pytest.mark.proves("Line times", "the sum over all workers, and each by itself")
def test_each_process_by_itself(recorded: LineRun) -> None:
    text = shown(recorded, "run", "--per-process").stdout.decode()
    tables = text.split("Process: ")[1:]
    assert [table.split("\n")[0] for table in tables] == [f"worker {n}" for n in range(4)]
    for table in tables:
        assert "     7       100     500000.0   5000.0     62.5" in table


@pytest.mark.proves("Line times", "the text of the lines as they ran, though the file was edited")
def test_an_edited_file_shows_the_lines_that_ran(recorded: LineRun) -> None:
    before = shown(recorded, "run")
    (recorded.project / "data.py").write_text("import this\n" * 50)
    after = shown(recorded, "run")
    assert after.stdout == before.stdout
    assert b"trainprof: data.py has changed since the run" in after.stderr
    assert b"has changed" not in before.stderr


def test_names_and_lines_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    made = LineRun(tmp_path)
    made.source("data.py", "def f():\n    x = '\x1b[31m\x9b2J\x1b]0;title\x07'\n")
    process = made.process()
    process.lines(process.function("data.py", 1, "f\x1b[2J\n\r", "\x1b]0;x\x07"), {2: (1, 1000)})
    process.function("data.py", 1, "g\x1b[2J")
    made.write()
    piped = shown(made, "run")
    assert b"\x1b" not in piped.stdout + piped.stderr
    assert b"Function: f   at line 1" in piped.stdout
    with OnTerminal((*LINES, "run"), cwd=tmp_path) as terminal:
        terminal.end()
        on_terminal = terminal.shown.decode()
    for acting in ("\x1b[2J", "\x1b[31m", "\x1b]", "\x9b", "\x07"):
        assert acting not in on_terminal


# -- with a script ------------------------------------------------------------------------------

SCRIPT = """\
import sys

@profile
def count(n):
    total = 0
    for i in range(n):
        total += i
    return total

if __name__ == "__main__":
    print(count(1000), sys.argv[1:])
    sys.exit(3)
"""


@pytest.mark.proves("Line times", "the script's output, arguments and exit status as without")
def test_a_script_ends_as_without_and_its_lines_come_after(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    undecorated = write_script(tmp_path, SCRIPT.replace("@profile\n", ""), "plain.py")
    plain = run(PYTHON, undecorated, "-u", "--top", cwd=tmp_path)
    ours = run(LINES, "-o", "run", script, "-u", "--top", cwd=tmp_path)
    assert (ours.stdout, ours.status) == (plain.stdout, plain.status) == (plain.stdout, 3)
    err = ours.stderr.decode()
    assert " trainprof ─" in err.partition("\n")[0]
    assert "\nscript.py exited with status 3 after " in err
    table = err[err.index("Timer unit: ") : err.index("trainprof: Line timing added")]
    assert run(LINES, "run", cwd=tmp_path).stdout.decode() == table
    hits = {
        line.split()[0]: line.split()[1] for line in table.splitlines() if " total += i" in line
    }
    assert hits == {"7": "1000"}
    assert "trainprof: see it again: trainprof lines run\n" in err


def test_a_script_that_a_signal_ends_ends_lines_alike(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    ended = run(LINES, "-o", "run", script, cwd=tmp_path)
    assert ended.status == -signal.SIGKILL
    assert b"SIGKILL" in ended.stderr


def test_on_a_terminal_the_page_comes_after_the_script(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    with OnTerminal((*LINES, "-o", "run", script), cwd=tmp_path) as terminal:
        assert terminal.end() == 3
        text = re.sub(r"(\r\x1b\[K(trainprof: analysing[^\r]*)?)+", "", terminal.shown.decode())
    assert text.startswith(
        "trainprof: recording steps, data loading, line times, CPU and GPU to run"
    )
    assert "\r\nscript.py exited with status 3" in text.partition("499500 []\r\n")[2]
    assert "Line contents" in text
    assert "Timer unit" not in text


def test_quiet_lines_and_lines_of_a_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    quiet = run(LINES, "-q", "-o", "quiet", script, cwd=tmp_path)
    assert (quiet.status, quiet.stderr) == (3, b"")
    with_lines = run(TRAINPROF, "--lines", "-o", "with", script, cwd=tmp_path)
    assert (with_lines.status, with_lines.stderr) == (3, b"")
    tables = [run(LINES, name, cwd=tmp_path).stdout for name in ("quiet", "with")]
    assert [b" total += i" in table for table in tables] == [True, True]
    assert b"No training step seen" in run(REPORT, "with", cwd=tmp_path).stdout
