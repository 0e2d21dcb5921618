"""Files that a trial wrote before its first batch and that are not among the user's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted_trials import FakeRunner, Planted

from trainprof.experiments.prepared_files import (
    hint_of_missing_file,
    notes_of_preparing,
    prepared_files,
)
from trainprof.experiments.trial import Limits, Measured, Prepared, baseline
from trainprof.experiments.tune import _notes_of

LATER = 1 << 62
MIB = 1 << 20


class Trial:
    """A working directory and a trial's scratch directory beside it."""

    def __init__(self, place: Path) -> None:
        self.cwd, self.scratch = place / "work", place / "scratch"
        self.console = place / "console"
        for made in (self.cwd, self.scratch / "files", self.console):
            made.mkdir(parents=True)

    def writes(self, path: str, size: int = 1) -> Path:
        kept = self.scratch / "files" / str(self.cwd / path).lstrip("/")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(bytes(size))
        return kept

    def prepared(self, until_ns: int = LATER) -> Prepared | None:
        return prepared_files(self.scratch, self.cwd, until_ns=until_ns)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def test_new_files_are_counted_with_where_most_of_them_lies(trial: Trial) -> None:
    assert trial.prepared() is None
    trial.writes("data/cifar/train.bin", 3000)
    trial.writes("data/cifar/test.bin", 1000)
    trial.writes("log.txt", 3500)
    assert trial.prepared() == Prepared(3, 7500, "data/")
    trial.writes("other.bin", 9000)
    assert trial.prepared() == Prepared(4, 16500, "the working directory")


def test_what_is_there_already_was_not_prepared(trial: Trial) -> None:
    (trial.cwd / "model.pt").write_bytes(b"mine")
    trial.writes("model.pt", 5000)
    assert trial.prepared() is None
    (trial.cwd / "data").mkdir()
    trial.writes("data/new.bin", 10)
    assert trial.prepared() == Prepared(1, 10, "data/")


def test_what_is_written_while_it_trains_was_not_either(trial: Trial) -> None:
    kept = trial.writes("data/x.bin", 10)
    os.utime(kept, ns=(1, 1))  # as of a member of an archive
    changed_ns = kept.stat().st_ctime_ns
    assert trial.prepared(until_ns=changed_ns) == Prepared(1, 10, "data/")
    assert trial.prepared(until_ns=changed_ns - 1) is None


def run_with(prepared: Prepared | None, startup_s: float) -> Measured:
    run = FakeRunner(Planted(lambda _: 0.01)).run(baseline(), 1, Limits(30, 60.0))
    return replace(run, prepared=prepared, startup_s=startup_s)


def test_it_is_said_where_it_takes_long() -> None:
    [said] = notes_of_preparing(run_with(Prepared(60_000, 170 * MIB, "data/"), 42.0))
    assert said.startswith(
        "42 s pass before the script's first batch, and meanwhile it writes 60,000 files "
        "(170 MiB, most in data/)"
    )
    assert "run it once without tune" in said


@pytest.mark.parametrize(
    ("prepared", "startup_s"),
    [
        (None, 42.0),
        (Prepared(4, 20_000, "runs/"), 42.0),  # settings and first lines of logs
        (Prepared(60_000, 170 * MIB, "data/"), 3.0),
    ],
)
def test_else_nothing_is(prepared: Prepared | None, startup_s: float) -> None:
    assert notes_of_preparing(run_with(prepared, startup_s)) == []
    assert _notes_of(run_with(prepared, startup_s)) == ()


def test_what_goes_on_beyond_the_scripts_end_is_said_beside_it() -> None:
    run = run_with(Prepared(1, 170 * MIB, "data/"), 42.0)
    preparing, left = _notes_of(replace(run, left_running=("tensorboard", "python3 server.py")))
    assert "writes a file (170 MiB, most in data/) that is not there" in preparing
    assert left.endswith("ended with each trial: tensorboard, python3 server.py")


def test_a_file_that_a_native_reader_does_not_find_is_told_from_others(trial: Trial) -> None:
    (trial.cwd / "there.png").touch()
    trial.writes("there.png")
    trial.writes("cache/0.png")
    hint = hint_of_missing_file(trial.console, trial.scratch, trial.cwd)
    assert hint is None  # it wrote nothing
    for missed, is_hinted in (("there.png", False), ("none.png", False), ("cache/0.png", True)):
        (trial.console / "stderr").write_text(
            f'  File "{trial.cwd}/train.py", line 3\n'
            f"RuntimeError: [Errno 2] No such file or directory: '{missed}'\n"
        )
        hint = hint_of_missing_file(trial.console, trial.scratch, trial.cwd)
        assert (hint is not None) is is_hinted, missed
