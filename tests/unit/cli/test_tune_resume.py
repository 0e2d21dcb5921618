"""`trainprof tune --resume`: by the same command alone, whatever its directory holds."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries

from trainprof.cli.app import run_command
from trainprof.tune import session
from trainprof.tune.runner import Script
from trainprof.tune.session import TuneOptions

Captured = pytest.CaptureFixture[str]
SECRET = "abcdef0123456789"
JOURNAL = Path("t/tune.json")


def begun(*words: str, module: str | None = None, is_sandboxed: bool = True) -> dict[str, Any]:
    """Begins a `tune` run in t; returns what its tune.json holds."""
    script = Script(words, module)
    session.begin(TuneOptions(script, output=Path("t"), is_sandboxed=is_sandboxed))
    return journal_now()


def journal_now() -> dict[str, Any]:
    found = json.loads(JOURNAL.read_text())
    assert isinstance(found, dict)
    return found


def refusal(capsys: Captured, *words: str) -> str:
    """Returns the one line, and the hint below it, that `tune` refuses words with."""
    assert run_command(["tune", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("trainprof: ")
    assert lines[1].startswith("hint: ")
    assert "--debug" not in shown.err  # an error that nobody foresaw
    return shown.err


def test_it_takes_the_same_command_and_goes_on(planted: list[str], capsys: Captured) -> None:
    begun("train.py", "--lr", "1")
    assert run_command(["tune", "-q", "--resume", "t", "train.py", "--lr", "1"]) == 0
    assert "AS FAST with num_workers=2" in capsys.readouterr().out


def test_without_the_command_it_says_that_it_takes_it(planted: list[str], capsys: Captured) -> None:
    begun("train.py")
    assert "--resume needs the same command again" in refusal(capsys, "--resume", "t")
    assert planted == []


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["train.py", "--lr", "2"],
        ["train.py", "--lr", "1", "--check"],
        ["./train.py", "--lr", "1"],
        ["-m", "train", "--lr", "1"],
    ],
)
def test_another_command_is_refused_with_the_one_that_was_tuned(
    planted: list[str], capsys: Captured, words: list[str]
) -> None:
    begun("train.py", "--lr", "1")
    said = refusal(capsys, "--resume", "t", *words)
    assert f"the command was train.py --lr 1 and is {shlex.join(words)}:" in said
    assert planted == []


def test_a_module_is_another_command_than_its_file(planted: list[str], capsys: Captured) -> None:
    begun("--lr", "1", module="train")
    assert "was -m train --lr 1" in refusal(capsys, "--resume", "t", "train.py", "--lr", "1")
    assert run_command(["tune", "-q", "--resume", "t", "-m", "train", "--lr", "1"]) == 0


def test_what_the_directory_holds_is_never_executed(planted: list[str], capsys: Captured) -> None:
    held = begun("train.py")
    Path("evil.py").write_text("raise SystemExit('executed')\n")
    JOURNAL.write_text(json.dumps({**held, "words": ["evil.py"]}))
    assert "--resume needs" in refusal(capsys, "--resume", "t")
    assert "command was evil.py" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


def test_words_of_the_directory_reach_the_terminal_as_text(
    planted: list[str], capsys: Captured
) -> None:
    held = begun("train.py")
    JOURNAL.write_text(json.dumps({**held, "words": ["a\x1b[2J\nb\u202e"]}))
    said = refusal(capsys, "--resume", "t", "train.py")
    assert not {"\x1b", "\u202e"} & set(said)


def test_a_secret_is_not_written_down_and_is_given_again(
    planted: list[str], capsys: Captured
) -> None:
    command = ["train.py", "--api-key", SECRET]
    begun(*command)
    assert SECRET not in JOURNAL.read_text() + Path("t/manifest.json").read_text()
    assert SECRET not in refusal(capsys, "--resume", "t", "train.py")
    assert run_command(["tune", "-q", "--resume", "t", *command]) == 0


def test_the_command_that_the_page_names_goes_on(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """{trial} is in the command as it was given, and a name in that of a trial."""
    base = summaries.slow_loader()
    recorded = replace(base, run=replace(base.run, command=["train.py", "--out=runs/baseline"]))
    monkeypatch.setattr(session, "saved_summary", lambda directory: recorded)
    command = ["train.py", "--out=runs/{trial}"]
    assert run_command(["tune", "-q", "-o", "t", "--budget", "15s", *command]) == 0
    said = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    again = said.partition("trainprof tune --resume t ")[2]
    assert shlex.split(again)[: len(command)] == command


@pytest.mark.parametrize("cwd", [None, "", "/elsewhere"])
def test_it_goes_on_where_it_was_begun(
    planted: list[str], capsys: Captured, cwd: str | None
) -> None:
    JOURNAL.write_text(json.dumps({**begun("train.py"), "cwd": cwd}))
    said = refusal(capsys, "--resume", "t", "train.py")
    assert f"the directory was {cwd or 'not known'} and is {os.getcwd()}" in said
    assert planted == []


@pytest.mark.parametrize("was_sandboxed", [True, False])
def test_it_goes_on_as_sandboxed_as_it_was(
    planted: list[str], capsys: Captured, was_sandboxed: bool
) -> None:
    begun("train.py", is_sandboxed=was_sandboxed)
    bare = ["--unsandboxed"]
    shown = refusal(capsys, "--resume", "t", *(bare if was_sandboxed else []), "train.py")
    assert f"--unsandboxed was {'not given' if was_sandboxed else 'given'}" in shown
    assert planted == []
    alike = [] if was_sandboxed else bare
    assert run_command(["tune", "-q", "--resume", "t", *alike, "train.py"]) == 0


ENTRY = {
    "name": "baseline",
    "number": 1,
    "overrides": {},
    "directory": "trials/baseline",
    "outcome": "ok",
    "detail": None,
    "failed_after": None,
    "left_running": [],
    "seconds": 3.0,
}
HUGE, INFINITE, NAN = 10**400, math.inf, math.nan


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def damages() -> Iterator[tuple[str, object]]:
    """Yields fields of tune.json, and values that they cannot have."""
    for key in ("schema_version", "words", "trial_steps", "cwd", "sources", "is_sandboxed", "done"):
        yield key, ...  # it is missing
    yield from (("schema_version", value) for value in (None, 0, 2, "1", [1]))
    yield from (("words", value) for value in (None, 3, 1.5, True))
    yield from (("budget_s", value) for value in (None, "long", [], {}, HUGE))
    yield from (("trial_steps", value) for value in ("many", [], INFINITE, NAN))
    yield from (("interval_s", value) for value in ("often", [], HUGE))
    yield from (("sources", value) for value in (3, [1], "text", [["a"]]))
    yield from (("variables", value) for value in (3, [None], "text"))
    yield from (("done", value) for value in (None, 3, {"a": 1}, [3], [None], [[]], ["x"], [{}]))


def damages_of_entries() -> Iterator[tuple[str, object]]:
    yield from ((key, ...) for key in ENTRY)
    yield from (("number", value) for value in (None, "first", [], INFINITE, NAN))
    yield from (("overrides", value) for value in (None, 3, [1], "text"))
    yield from (("seconds", value) for value in (None, "long", [], HUGE))
    yield from (("left_running", value) for value in (None, 3))


def changed(fields: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    kept = {name: one for name, one in fields.items() if name != key}
    return kept if value is ... else {**kept, key: value}


@pytest.mark.parametrize(("key", "value"), list(damages()))
def test_a_damaged_field_is_one_line(
    planted: list[str], capsys: Captured, key: str, value: object
) -> None:
    JOURNAL.write_text(json.dumps(changed(begun("train.py"), key, value)))
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize(("key", "value"), list(damages_of_entries()))
def test_a_damaged_field_of_a_trial_is_one_line(
    planted: list[str], capsys: Captured, key: str, value: object
) -> None:
    held = begun("train.py")
    JOURNAL.write_text(json.dumps({**held, "done": [changed(ENTRY, key, value)]}))
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[1, 2]",
        b"3",
        b"null",
        b'"tune"',
        b"NaN",
        b"Infinity",
        b"{}",
        bytes(range(256)),
        b"\x00" * 100,
        b"\xff\xfe{\x00}\x00",
        b"9" * 5000,
        nested(100_000).encode(),
        b'{"a":' * 100_000,
        b'{"schema_version": 1, "done": ' + nested(100_000).encode() + b"}",
    ],
    ids=range(17),
)
def test_a_file_that_is_none_of_ours_is_one_line(
    planted: list[str], capsys: Captured, content: bytes
) -> None:
    begun("train.py")
    JOURNAL.write_bytes(content)
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


def test_a_file_that_is_too_large_is_one_line(planted: list[str], capsys: Captured) -> None:
    begun("train.py")
    os.truncate(JOURNAL, 1 << 40)
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")


def linked() -> None:
    JOURNAL.rename("elsewhere.json")
    JOURNAL.symlink_to(Path("elsewhere.json").absolute())


def replaced_by(make: Callable[[Path], object]) -> None:
    JOURNAL.unlink()
    make(JOURNAL)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (JOURNAL.unlink, "No such file"),
        (lambda: replaced_by(Path.mkdir), "not a plain file"),
        (lambda: replaced_by(os.mkfifo), "not a plain file"),
        (linked, "symbolic links"),
    ],
)
def test_what_is_no_file_in_its_place_is_one_line_and_nobody_waits(
    planted: list[str], capsys: Captured, change: Callable[[], object], why: str
) -> None:
    begun("train.py")
    change()
    said = refusal(capsys, "--resume", "t", "train.py")
    assert "is no `tune` run: tune.json cannot be read" in said
    assert why in said
    assert planted == []


def test_a_run_of_another_verb_is_no_tune_run(planted: list[str], capsys: Captured) -> None:
    Path("t").mkdir()
    Path("t/manifest.json").write_text(json.dumps({"schema_version": 1, "kind": "run"}))
    refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("budget_s", value) for value in (INFINITE, -INFINITE, NAN, 1e308)),
        *(("interval_s", value) for value in (INFINITE, NAN, 0, -1.0)),
        ("trial_steps", -5),
    ],
)
def test_a_number_that_no_tune_run_has_is_one_line(
    planted: list[str], capsys: Captured, key: str, value: float
) -> None:
    JOURNAL.write_text(json.dumps({**begun("train.py"), key: value}))
    refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize("seconds", [INFINITE, -INFINITE, NAN, -1e308])
def test_a_time_that_no_trial_takes_is_one_line(
    planted: list[str], capsys: Captured, seconds: float
) -> None:
    held = begun("train.py")
    JOURNAL.write_text(json.dumps({**held, "done": [{**ENTRY, "seconds": seconds}]}))
    refusal(capsys, "--resume", "t", "train.py")
    assert planted == []
