"""`trainprof lines`: whether its first word is a script or a saved run, and what it may be told."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from trainprof.cli.app import app, options_with_value, script_word
from trainprof.cli.lines import names_saved_run

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VALUED = options_with_value(COMMANDS["lines"])


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def saved_run(path):
    Path(path).mkdir(parents=True)
    (Path(path) / "manifest.json").write_text('{"schema_version": 1}')


def test_a_saved_run_is_a_directory_a_name_or_latest():
    saved_run("trainprof-runs/train-1")
    saved_run("elsewhere")
    Path("cut/events").mkdir(parents=True)
    Path("many/ranks/0").mkdir(parents=True)
    names = ("trainprof-runs/train-1", "train-1", "elsewhere", "elsewhere/")
    for word in (*names, "latest", "cut", "many"):
        assert names_saved_run(word), word


def test_a_script_is_all_else(tmp_path):
    saved_run("trainprof-runs/train.py")
    Path("train.py").touch()
    Path("package").mkdir()
    Path("package/__main__.py").touch()
    Path("package/events").mkdir()
    Path("latest").touch()
    words = ("train.py", "package", "torchrun", "nowhere.py", "latest", "-", "", "a\0b", "x" * 5000)
    for word in words:
        assert not names_saved_run(word), word


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["latest"], "latest"),
        (["--top", "3", "latest", "--sort"], "latest"),
        (["-f", "data:*", "--only", "workers", "train.py", "-f"], "train.py"),
        (["-zt", "-u", "ms", "x"], "x"),
        (["--", "latest"], None),
        (["-m", "latest"], None),
        (["-m", "module", "latest"], None),
        (["--help"], None),
        ([], None),
    ],
)
def test_the_word_that_decides(arguments, word):
    assert script_word(arguments, VALUED) == word


def test_lines_takes_all_that_run_does():
    def names(command):
        return {name for parameter in COMMANDS[command].params for name in parameter.opts}

    # It finds nothing, and never makes a device wait.
    assert names("run") - {"--lines", "--rule"} <= names("lines") | {"script"}
