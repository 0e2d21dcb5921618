"""The working directory of a trial without a sandbox: what is copied, and what is linked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainprof.tune.sandbox import sandbox
from trainprof.tune.sandbox.sandbox import scratch_directory

LARGE = 4 << 20


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


def made(scratch: Path, cwd: Path, but_for: Path | None = None) -> dict[str, Path]:
    """Returns what is in the scratch directory, by name."""
    place = scratch_directory(scratch, cwd, but_for=but_for or cwd / "trainprof-runs/t")
    assert place == scratch
    return {path.name: path for path in place.iterdir()}


def test_small_files_are_copied_and_the_originals_stay_when_copies_are_written(
    cwd: Path, scratch: Path
) -> None:
    (cwd / "log").write_text("before")
    (cwd / "run.sh").write_text("#!/bin/sh\n")
    (cwd / "run.sh").chmod(0o755)
    there = made(scratch, cwd)
    assert not there["log"].is_symlink()
    assert os.access(there["run.sh"], os.X_OK)
    with there["log"].open("a") as file:
        file.write(" and by the trial")
    there["run.sh"].unlink()
    assert (cwd / "log").read_text() == "before"
    assert (cwd / "run.sh").exists()


def test_large_files_and_directories_are_linked(cwd: Path, scratch: Path) -> None:
    (cwd / "data/deep").mkdir(parents=True)
    (cwd / "data/deep/x").write_text("x")
    for name, size in (("limit.bin", LARGE), ("large.bin", LARGE + 1)):
        with (cwd / name).open("wb") as file:
            file.truncate(size)
    there = made(scratch, cwd)
    assert {name: path.is_symlink() for name, path in there.items()} == {
        "data": True,
        "limit.bin": False,
        "large.bin": True,
    }
    assert (there["data"] / "deep/x").read_text() == "x"
    assert there["large.bin"].resolve() == cwd / "large.bin"


def test_links_lead_where_they_led_and_a_pipe_is_no_file_to_copy(cwd: Path, scratch: Path) -> None:
    (cwd / "data").write_text("x")
    (cwd / "relative").symlink_to("data")
    (cwd / "nowhere").symlink_to("gone")
    os.mkfifo(cwd / "pipe")
    there = made(scratch, cwd)
    assert there["relative"].read_text() == "x"
    assert there["nowhere"].is_symlink()
    assert there["pipe"].is_symlink()


def test_no_more_is_copied_than_a_limit_in_all(
    cwd: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_MOST_COPIED_BYTES", 25)
    for number in range(5):
        (cwd / str(number)).write_bytes(bytes(10))
    copies = [path for path in made(scratch, cwd).values() if not path.is_symlink()]
    assert len(copies) == 2


@pytest.mark.parametrize("but_for", ["trainprof-runs/tune-x", "runs"])
def test_the_runs_own_entry_is_left_out(cwd: Path, scratch: Path, but_for: str) -> None:
    (cwd / but_for / "trials").mkdir(parents=True)
    (cwd / "train.py").touch()
    assert set(made(scratch, cwd, cwd / but_for)) == {"train.py"}


def test_what_cannot_be_read_is_linked_or_left_out_and_the_rest_is_there(
    cwd: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("secret", "train.py"):
        (cwd / name).write_text(name)
    copy = sandbox.shutil.copy2

    def refused(source: str, target: Path) -> object:
        if source.endswith("secret"):
            raise PermissionError
        return copy(source, target)

    monkeypatch.setattr(sandbox.shutil, "copy2", refused)
    assert made(scratch, cwd)["train.py"].read_text() == "train.py"
