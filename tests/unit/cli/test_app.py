"""Which part of a command line is whose, how errors end, and what a stream can show."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from trainprof.cli.app import built_verbs, options_with_value, our_part, run_command, separated
from trainprof.cli.options import seconds
from trainprof.cli.output import Working, complain, page_of, width_of, write, write_line

HEAVY = ("torch", "numpy", "rich", "psutil", "pynvml", "trainprof.analysis", "trainprof.report")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["run"], 125, "no script given"),
        (["run", "nowhere.py"], 127, "no such script: nowhere.py"),
        (["run", "--", "nowhere.py", "--debug"], 127, "no such script"),
        (["run", "--interval", "99", "x.py"], 125, "at most 60 s"),
        (["run", "--max-steps", "0", "x.py"], 125, "'0' is not a whole number of at least 1"),
        (["run", "--max-time", "0", "x.py"], 125, "'--max-time': 0 is not at least 0.001 s"),
        (["run", "-o"], 125, "-o"),
        (["run", "--frobnicate", "x.py"], 125, "unknown option --frobnicate"),
        (["lines"], 125, "no script given"),
        (["lines", "--", "latest"], 127, "no such script: latest"),
        (["lines", "-u", "fortnight", "x.py"], 125, "'fortnight' is not a unit"),
        (["lines", "-u", "nan", "x.py"], 125, "'nan' is not a unit"),
        (["lines", "--only", "gpu", "x.py"], 125, "'gpu' is not one of workers, main"),
        (["lines", "latest"], 2, "no run 'latest'"),
        (["lines", "bare"], 2, "bare has no line times"),
        (["lines", "bare", "--top", "many"], 2, "'many' is not a whole number"),
        (["lines", "bare", "more"], 2, "unexpected extra argument"),
        (["lines", "-f", "x:y", "bare"], 2, "unknown option -f"),
        (["report"], 2, "RUN"),
        (["report", "nowhere"], 2, "no run 'nowhere'"),
        (["report", ""], 2, "the name of the run is empty"),
        (
            ["report", "latest", "--format", "xml"],
            2,
            "'xml' is not one of terminal, json, markdown",
        ),
        (["report", "latest", "--epoch", "9" * 5000], 2, "is not a whole number"),
        (["report", "latest", "--steps", f"1:{'9' * 5000}"], 2, "not A:B"),
        (["report", "latest", "--steps", "5:4"], 2, "not A:B"),
        (["frobnicate"], 2, "unknown command 'frobnicate'"),
        (["--frobnicate"], 2, "unknown option --frobnicate"),
    ],
)
def test_user_errors_are_one_line_and_a_hint(capsys, arguments, status, part):
    Path("bare").mkdir()
    Path("bare/manifest.json").write_text('{"schema_version": 1}')
    assert run_command(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    message, hint = err.splitlines()
    assert message.startswith("trainprof: ")
    assert part in message
    assert hint.startswith("hint: ")
    if "see trainprof" in hint and arguments[0] in ("run", "lines", "report"):
        assert hint == f"hint: see trainprof {arguments[0]} --help"
    assert not Path("trainprof-runs").exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["reprot"], "did you mean report?"),
        (["train.py", "--epochs", "1"], "trainprof run train.py"),
        (["run", "--max-step", "5", "train.py"], "did you mean --max-steps?"),
        (["run", "train"], "did you mean train.py?"),
        (["run", "sub/trian.py"], "did you mean sub/train.py?"),
        (["tune", "notes.ipynb"], "jupyter nbconvert --to script notes.ipynb"),
    ],
)
def test_a_slip_gets_the_nearest_name(capsys, arguments, hint):
    Path("sub").mkdir()
    for name in ("train.py", "sub/train.py", "notes.ipynb"):
        Path(name).write_text("")
    assert run_command(arguments) != 0
    assert hint in capsys.readouterr().err.splitlines()[1]


def test_completion_is_typers_own():
    command = [sys.executable, "-m", "trainprof"]
    asked = {
        "_TRAINPROF_COMPLETE": "complete_bash",
        "COMP_WORDS": "trainprof re",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout.split() == ["report"]


def test_debug_shows_where_an_error_comes_from(capsys):
    assert run_command(["report", "nowhere", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line_too(monkeypatch, capsys):
    def broken(*arguments):
        raise RuntimeError("odd\nthing")

    monkeypatch.setattr("trainprof.cli.report.find_run", broken)
    assert run_command(["report", "x"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "trainprof: RuntimeError: odd\\nthing",
        "hint: --debug shows the traceback",
    ]
    monkeypatch.setattr("trainprof.launch.run.resolve", broken)
    assert run_command(["run", "x.py"]) == 125


def test_help_and_version_go_to_stdout(capsys):
    for words in ([], ["--help"], ["run", "--help"], ["report", "-h"], ["--version"]):
        assert run_command(words) == 0
        out, err = capsys.readouterr()
        assert out.startswith("trainprof " if words == ["--version"] else "Usage: trainprof")
        assert err == ""


def test_nothing_heavy_is_imported_before_the_script_starts():
    text = f"""
import sys
from trainprof.cli.app import run_command
run_command(["run", "nowhere.py"])
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_pipe_that_closes_early_is_no_traceback():
    command = [sys.executable, "-m", "trainprof", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


COMMAND = built_verbs()
VALUED = options_with_value(COMMAND.commands["run"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ours", "script"),
    [
        ([], ["x.py"]),
        (["-q"], ["x.py", "-q", "--help", "-o", "d"]),
        (["-o", "d"], ["x.py", "--", "y"]),
        (["-od"], ["x.py"]),
        (["--output=d", "--interval", "2"], ["x.py"]),
        (["-qv", "--max-steps", "5"], ["x.py", "-m", "mod"]),
        (["-qo", "d"], ["x.py"]),
        (["-m", "mod"], ["--help"]),
        (["-q", "-m", "mod"], ["--", "-o", "d"]),
        (["-qm", "mod"], ["-q"]),
        (["-mmod"], ["-q"]),
        (["-o", "-m", "-m", "mod"], ["x"]),
        (["--no-such-option"], ["x.py", "--no-such-option"]),
        ([], ["-"]),
    ],
)
def test_the_line_is_drawn_before_what_is_the_scripts(ours, script):
    words = separated([*ours, *script], VALUED)
    assert words == [*ours, "--", *script]
    assert our_part(words) == ours


def test_a_line_already_drawn_is_kept_and_without_a_script_nothing_is_lost():
    assert separated(["-q", "--", "x.py", "--", "-o"], VALUED) == ["-q", "--", "x.py", "--", "-o"]
    for words in ([], ["-q"], ["-o"], ["--help"], ["-m"], ["-m", "mod"]):
        assert [word for word in separated(words, VALUED) if word != "--"] == words


@given(st.lists(st.text(max_size=5)))
def test_what_follows_the_script_is_never_ours(script_arguments):
    words = separated(["-q", "x.py", *script_arguments], VALUED)
    assert words == ["-q", "--", "x.py", *script_arguments]


def test_durations():
    durations = {
        "0.5": 0.5,
        ".5s": 0.5,
        "500ms": 0.5,
        "90s": 90,
        "10m": 600,
        "1h": 3600,
        "7d": 604_800,
        "2": 2,
    }
    assert {text: seconds(text) for text in durations} == durations
    for text in ("", "s", "-1", "1w", "1e3", "nan", "inf", "1 2", "1:30", "٣"):
        with pytest.raises(typer.BadParameter):
            seconds(text)


# What a stream can show


class Terminal(io.StringIO):
    encoding = "UTF-8"  # type: ignore[assignment]

    def isatty(self):
        return True


class Captured(io.StringIO):
    """A file that the script's tqdm writes to as well."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a+", encoding="utf-8")  # noqa: SIM115

    def fileno(self):
        return self.file.fileno()


def test_a_progress_line_stands_on_a_line_of_its_own(tmp_path):
    terminal = Terminal()
    write_line(terminal, "step 3")
    assert terminal.getvalue() == "\r\x1b[Kstep 3\n"
    stream = Captured(tmp_path / "log")
    with stream.file:
        write_line(stream, "step 1")
        stream.file.write("\r 10%|#  |")
        stream.file.flush()
        write_line(stream, "step 2")
    assert stream.getvalue() == "step 1\n\nstep 2\n"
    pipe = io.StringIO()
    write_line(pipe, "step 4")
    assert pipe.getvalue() == "step 4\n"


def test_a_bar_moves_on_a_terminal_and_is_erased(monkeypatch):
    monkeypatch.setattr("trainprof.cli.output._BAR_AFTER_S", 0.001)
    drawn = threading.Event()

    class Watched(Terminal):
        def flush(self):
            drawn.set()

    terminal = Watched()
    with Working(terminal, "analysing the run"):
        assert drawn.wait(10)
    text = terminal.getvalue()
    assert text.startswith("\r\x1b[Ktrainprof: analysing the run ")
    assert text.endswith("\r\x1b[K")
    silent = io.StringIO()
    with Working(silent, "analysing the run"):
        pass
    assert silent.getvalue() == ""


@pytest.fixture
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_colour_is_for_terminals_that_do_not_forbid_it(plain_environment, monkeypatch):
    assert page_of(Terminal()).color
    assert not page_of(io.StringIO()).color
    assert not page_of(None).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not page_of(Terminal()).color


def test_width_without_a_terminal(plain_environment, monkeypatch):
    for columns, width in ((None, 80), ("132", 132), ("0", 80), ("-5", 80), ("wide", 80)):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert width_of(io.StringIO()) == width_of(None) == width


def test_what_a_stream_cannot_encode_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    assert page_of(Terminal()).unicode
    assert not page_of(stream).unicode
    write(stream, "é\n")
    assert raw.getvalue() == b"\\xe9\n"
    write(None, "nobody reads this")


def test_a_complaint_is_one_line_and_a_hint(monkeypatch, capsys):
    complain("no such script: a\nb\x1b[31m\udcff", hint="look\rthere")
    assert capsys.readouterr().err == (
        "trainprof: no such script: a\\nb\\x1b[31m\\udcff\nhint: look\\rthere\n"
    )
    monkeypatch.setattr(sys, "stderr", None)
    complain("stderr was closed")
