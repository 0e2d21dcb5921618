"""What a trial wrote into its sandbox, and what a refusal of the sandbox's is to a script."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted_trials import FakeRunner, Planted

from trainprof.experiments.sandbox.files import (
    large_copies,
    notes_of_files,
    prepared_files,
    refusal_in,
)
from trainprof.experiments.trial import Limits, Measured, Prepared, Trial, baseline

LATER_NS = time.time_ns() + 10**15
MIB, GIB = 1 << 20, 1 << 30


class Written:
    """What a trial leaves in its scratch directory, and the user's files, which are in `home`."""

    def __init__(self, directory: Path) -> None:
        self.scratch = directory / "scratch"
        self.home = directory / "home"
        self.cwd = self.home / "project"
        self.overlays = (str(directory / "other"), str(self.home))
        for path in (self.scratch, self.cwd):
            path.mkdir(parents=True)

    def by_trial(self, name: str, size: int, *, overlay: int = 1) -> Path:
        """Plants a file that the trial wrote; on the disk it takes nothing."""
        path = self.scratch / str(overlay) / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
        return path

    def by_user(self, name: str) -> None:
        (self.home / name).parent.mkdir(parents=True, exist_ok=True)
        (self.home / name).touch()

    def prepared(self, until_ns: int = LATER_NS) -> Prepared | None:
        return prepared_files(self.scratch, self.overlays, self.cwd, until_ns=until_ns)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_files_that_were_not_there_are_counted_by_the_directory_with_most_of_them(
    written: Written,
) -> None:
    written.by_trial("project/data/train/0.png", 700)
    written.by_trial("project/data/test/0.png", 300)
    written.by_trial("project/notes", 900)
    assert written.prepared() == Prepared(3, 1900, "data/")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("project/vocabulary", "the working directory"),
        ("project/data/deep/er/x", "data/"),
        (".cache/x", "{home}/.cache"),
        ("projects/x", "{home}/projects"),
    ],
)
def test_their_place_is_as_seen_from_the_working_directory(
    written: Written, name: str, place: str
) -> None:
    written.by_trial(name, 7)
    found = written.prepared()
    assert found == Prepared(1, 7, place.format(home=written.home))


def test_files_of_every_overlay_count(written: Written) -> None:
    written.by_trial("x", 1, overlay=0)
    written.by_trial("y", 2, overlay=1)
    written.by_trial("z", 4, overlay=2)  # there is no such overlay
    found = written.prepared()
    assert found is not None
    assert (found.files, found.total_bytes) == (2, 3)


def test_what_was_there_is_changed_later_or_is_no_file_does_not_count(written: Written) -> None:
    written.by_user("project/log")
    written.by_trial("project/log", 5)
    (written.scratch / "1/upper/project/link").symlink_to("log")
    (written.scratch / "1/upper/project/empty").mkdir()
    os.mkfifo(written.scratch / "1/upper/project/pipe")
    assert written.prepared() is None
    changed_ns = written.by_trial("project/checkpoint", 5).stat().st_ctime_ns
    assert written.prepared(until_ns=changed_ns - 1) is None
    assert written.prepared(until_ns=changed_ns) == Prepared(1, 5, "the working directory")


def test_a_link_of_the_users_that_leads_nowhere_is_there(written: Written) -> None:
    (written.cwd / "data").symlink_to("gone")
    written.by_trial("project/data", 5)
    assert written.prepared() is None


def test_unpacked_files_with_an_old_time_of_their_content_count_by_when_they_were_made(
    written: Written,
) -> None:
    before_ns = time.time_ns() - 10**12
    os.utime(written.by_trial("project/data/x", 5), ns=(before_ns, before_ns))
    assert written.prepared(until_ns=before_ns) is None
    assert written.prepared() == Prepared(1, 5, "data/")


def test_a_trial_that_wrote_nothing_or_whose_writes_are_gone(written: Written) -> None:
    assert written.prepared() is None
    assert large_copies(written.scratch / "gone", written.overlays) == {}


def test_large_files_that_were_there_are_copies(written: Written) -> None:
    for name in ("train.bin", "small.bin"):
        written.by_user(name)
    written.by_trial("train.bin", 64 * MIB)
    written.by_trial("small.bin", 64 * MIB - 1)
    written.by_trial("made.bin", GIB)
    assert large_copies(written.scratch, written.overlays) == {
        str(written.home / "train.bin"): 64 * MIB
    }


MESSAGES = {
    18: "Invalid cross-device link",
    28: "No space left on device",
    30: "Read-only file system",
    75: "Value too large for defined data type",
}
SAID = {18: "EXDEV", 28: "ENOSPC", 30: "EROFS", 75: "EOVERFLOW"}


@pytest.mark.parametrize("number", MESSAGES)
@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno {number}] {message}: 'runs/last' -> 'runs/old'",
        "OSError: [Errno {number}] another language's words",
        "safetensors_rust.SafetensorError: Error: I/O error: {message} (os error {number})",
        "Error: another language's words (os error {number})",
        "mv: cannot move 'a' to 'b': {message}",
        "RuntimeError: unable to write to file </data/x>: {message} ({number})",
    ],
)
def test_a_refusal_is_known_by_what_python_rust_and_c_say(number: int, line: str) -> None:
    line = line.format(number=number, message=MESSAGES[number])
    why = refusal_in(f"Traceback (most recent call last):\n{line}\n")
    assert why is not None
    assert f"({SAID[number]})" in why


@pytest.mark.parametrize(
    "errors",
    [
        "",
        "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
        "PermissionError: [Errno 13] Permission denied: 'a'",
        "BlockingIOError: [Errno 180] no such number",
        "Error: (os error 2)",
        "ValueError: epoch 18, batch 28, class 30 of 75",
    ],
)
def test_other_errors_are_the_scripts_own(errors: str) -> None:
    assert refusal_in(errors) is None


def measured(trial: Trial | None = None, **changes: object) -> Measured:
    run = FakeRunner(Planted(lambda _: 0.01)).run(trial or baseline(), 1, Limits(30, 60.0))
    return replace(run, **changes)  # type: ignore[arg-type]


def test_what_each_trial_prepares_again_is_said_with_what_to_do() -> None:
    base = measured(prepared=Prepared(1200, 3 * GIB, "data/"), startup_s=45.0)
    [note] = notes_of_files((base,), base)
    assert note.startswith("Each trial spends 45 s before its first batch and writes 1,200 files")
    assert "3.00 GiB, most in data/" in note
    assert "run it once without tune" in note


@pytest.mark.parametrize(
    ("prepared", "startup_s"),
    [
        (None, 45.0),
        (Prepared(3, MIB - 1, "data/"), 45.0),  # first lines of logs
        (Prepared(3, GIB, "data/"), 9.9),
    ],
)
def test_little_of_it_is_not_said(prepared: Prepared | None, startup_s: float) -> None:
    base = measured(prepared=prepared, startup_s=startup_s)
    assert notes_of_files((base,), base) == []


def test_files_that_trials_copy_are_named_the_largest_first_each_once() -> None:
    base = measured(copied={"/d/labels.bin": GIB // 4, "/d/train.bin": 5 * GIB})
    other = measured(Trial("x"), copied={"/d/train.bin": 5 * GIB})
    [note] = notes_of_files((base, other), base)
    assert "opens train.bin, labels.bin for writing: each trial copies 5.25 GiB first" in note
    assert 'mode="r"' in note


def test_of_many_such_files_a_few_are_named() -> None:
    base = measured(copied={f"/d/{number}.bin": GIB for number in range(5)})
    [note] = notes_of_files((base,), base)
    assert "0.bin, 1.bin, 2.bin" in note
    assert "3.bin" not in note
    assert "5.00 GiB" in note
