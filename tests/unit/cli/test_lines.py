"""`trainprof lines`: whether its first word is a script or a saved run, and what it may be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainprof.cli.app import built_verbs, options_with_value, run_command, script_word
from trainprof.cli.lines import _check_functions, names_saved_run
from trainprof.launch.options import RunOptions

COMMANDS = built_verbs().commands  # type: ignore[attr-defined]
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

    assert names("run") - {"--lines"} <= names("lines")


def test_the_beginning_of_a_name_is_a_run_unless_it_is_a_command():
    saved_run("trainprof-runs/torchrun-1")
    saved_run("trainprof-runs/sh-1")
    assert names_saved_run("torchr")
    assert not names_saved_run("sh")


def test_a_function_that_no_file_has_is_refused_before_the_script_starts(capsys):
    Path("data.py").write_text("class Images:\n    def augment(self): ...\n")
    Path("train.py").write_text("raise SystemExit(7)\n")
    assert run_command(["lines", "-f", "augmnt", "train.py"]) == 125
    message, hint = capsys.readouterr().err.splitlines()
    assert "no function 'augmnt' in train.py" in message
    assert "did you mean augment?" in hint
    assert not Path("trainprof-runs").exists()
    for pattern in ("augment", "Images.*", "Images.augment", "anywhere:augmnt"):
        _check_functions([pattern], RunOptions(words=("train.py",)))
    Path("src/pkg/data").mkdir(parents=True)
    _check_functions(["anything"], RunOptions(words=("train.py",)))
