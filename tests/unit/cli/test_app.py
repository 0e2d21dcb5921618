from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainprof.cli.app import run_command

HEAVY = ("torch", "numpy", "rich", "psutil", "pynvml", "trainprof.analysis", "trainprof.report")


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["run"], 125, "no script given"),
        (["run", "nowhere.py"], 127, "no such script: nowhere.py"),
        (["run", "--", "nowhere.py", "--debug"], 127, "no such script"),
        (["run", "--interval", "99", "x.py"], 125, "at most 60 s"),
        (["run", "--interval", "soon", "x.py"], 125, "'soon' is not a duration"),
        (["run", "--max-steps", "0", "x.py"], 125, "'0' is not a whole number of at least 1"),
        (["run", "--max-steps", "many", "x.py"], 125, "'many' is not a whole number"),
        (["run", "--max-time", "0", "x.py"], 125, "'--max-time': 0 is not at least 0.001 s"),
        (["run", "-o"], 125, "-o"),
        (["run", "--frobnicate", "x.py"], 125, "No such option"),
        (["report"], 2, "RUN"),
        (["report", "nowhere"], 2, "no run at nowhere"),
        (["report", ""], 2, "no run named"),
        (["report", "latest", "--format", "xml"], 2, "'xml' is none of terminal, json, markdown"),
        (["report", "latest", "--epoch", "0"], 2, "'0' is not a whole number of at least 1"),
        (["report", "latest", "--epoch", "9" * 5000], 2, "is not a whole number"),
        (["report", "latest", "--steps", f"1:{'9' * 5000}"], 2, "not A:B"),
        (["report", "latest", "--steps", "5"], 2, "not A:B"),
        (["report", "latest", "--steps", "5:4"], 2, "not A:B"),
        (["frobnicate"], 2, "frobnicate"),
        (["--frobnicate"], 2, "No such option"),
    ],
)
def test_user_errors_are_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, part: str
) -> None:
    assert run_command(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    message, hint = err.splitlines()
    assert message.startswith("trainprof: ")
    assert part in message
    assert hint.startswith("hint: ")
    if "see trainprof" in hint and arguments[0] in ("run", "report"):
        assert hint == f"hint: see trainprof {arguments[0]} --help"
    assert not Path("trainprof-runs").exists()


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", "nowhere", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("odd\nthing")

    monkeypatch.setattr("trainprof.cli.report.find_run", broken)
    assert run_command(["report", "x"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "trainprof: RuntimeError: odd\\nthing",
        "hint: --debug shows where this comes from",
    ]
    monkeypatch.setattr("trainprof.launch.run.resolve", broken)
    assert run_command(["run", "x.py"]) == 125


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["report", "-h"]])
def test_help_goes_to_stdout(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_command(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: trainprof")
    assert err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trainprof ")


def test_nothing_heavy_is_imported_before_the_script_starts() -> None:
    text = f"""
import sys
from trainprof.cli.app import run_command
run_command(["run", "nowhere.py"])
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_pipe_that_closes_early_is_no_traceback() -> None:
    command = [sys.executable, "-m", "trainprof", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
