from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trainprof.launch.placement import RunDirectoryRefused, create_run_directory, run_name

NOON_NS = 1_795_262_400 * 1_000_000_000  # 2026-11-21 12:00:00 UTC


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def create(output=None, stem="train", time_ns=NOON_NS, **environ):
    path = None if output is None else Path(output)
    directory = create_run_directory(path, stem, environ, time_ns=time_ns)
    assert directory.events.is_dir()
    return directory.path.relative_to(Path.cwd())


def test_a_default_name_says_what_and_when():
    made = create()
    assert made.parent == Path("trainprof-runs")
    assert made.name.startswith("train-20261121-")
    assert made.name != create().name
    assert made.stat().st_mode & 0o777 == 0o700


def test_latest_is_relative_and_follows():
    create()
    second = create()
    link = Path("trainprof-runs/latest")
    assert os.readlink(link) == second.name
    assert [path.name for path in link.parent.glob(".*")] == [".gitignore"]


def test_a_directory_called_latest_is_left_alone():
    Path("trainprof-runs/latest").mkdir(parents=True)
    create()
    assert Path("trainprof-runs/latest").is_dir()
    assert not Path("trainprof-runs/latest").is_symlink()


@pytest.mark.parametrize("output", [None, "trainprof-runs/mine", "./trainprof-runs/a/../b/mine"])
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_sees_no_run_in_our_own_folder(output):
    subprocess.run(["git", "init", "-q", "."], check=True)
    create(output)
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b""


def test_what_git_is_told_already_stays():
    told = Path("trainprof-runs/.gitignore")
    told.parent.mkdir()
    for text in ("", "!*\n"):
        told.write_text(text)
        create()
        assert told.read_text() == text
    told.unlink()
    told.symlink_to("elsewhere")
    create()
    assert sorted(map(str, Path().iterdir())) == ["trainprof-runs"]
    assert not Path("trainprof-runs/elsewhere").exists()


def test_a_directory_of_the_users_gets_no_file_of_ours():
    Path("trainprof-runs").mkdir()
    create("mine/trainprof-runs/one")
    create("other")
    assert list(Path().rglob(".gitignore")) == []
    Path("trainprof-runs").rmdir()
    Path("trainprof-runs").symlink_to("mine")
    create()
    assert list(Path("mine").glob(".*")) == []


@pytest.mark.parametrize("stem", ["a b/c", "..", "-rf", "\x1b[31m", "é", "x" * 500, ""])
def test_any_script_name_gives_a_plain_file_name(stem):
    name = create(stem=stem).name
    assert name.isascii()
    assert name[0].isalnum()
    assert len(name) < 100


def test_output_is_taken_as_given():
    assert create("a/b/../c") == Path("a/c")
    Path("empty").mkdir()
    assert create("empty/") == Path("empty")
    assert not Path("trainprof-runs").exists()


def test_what_is_there_already_is_refused():
    create("a")
    Path("file").write_text("x")
    Path("target").mkdir()
    Path("link").symlink_to("target")
    for output in ("a", "file", "link", "file/below", "."):
        with pytest.raises(RunDirectoryRefused) as caught:
            create(output)
        assert caught.value.exit_code == 125
        assert caught.value.hint
    assert list(Path("target").iterdir()) == []
    assert Path("file").read_text() == "x"


def test_ranks_of_one_launch_meet_whenever_they_come():
    made = [create(RANK=rank, TORCHELASTIC_RUN_ID="j/1", time_ns=int(rank)) for rank in "012"]
    assert {path.parent for path in made} == {Path("trainprof-runs/train-j_1/ranks")}
    assert [path.name for path in made] == ["0", "1", "2"]


def test_a_second_launch_of_the_same_id_gets_its_own():
    for rank in "01":
        create(RANK=rank, TORCHELASTIC_RUN_ID="job")
    made = [create(RANK=rank, TORCHELASTIC_RUN_ID="job") for rank in "01"]
    assert {path.parent for path in made} == {Path("trainprof-runs/train-job-2/ranks")}


def test_ranks_without_an_id_meet_by_their_launcher():
    made = [create(RANK=rank, TORCHELASTIC_RUN_ID="none").parts[1] for rank in "32"]
    assert made[0] == made[1]
    assert made[0].startswith("train-launcher")
    assert create(RANK="3").parts[1].startswith(f"train-launcher{os.getppid()}-")


def test_a_restarted_rank_keeps_its_first_attempt():
    create("out", RANK="1")
    assert create("out", RANK="1", TORCHELASTIC_RESTART_COUNT="1") == Path("out/ranks/1.restart1")
    with pytest.raises(RunDirectoryRefused):
        create("out", RANK="1")


def test_a_rank_does_not_move_in_with_something_else():
    create("single")
    with pytest.raises(RunDirectoryRefused):
        create("single", RANK="0")


def test_a_rank_has_its_runs_name():
    directory = create_run_directory(Path("out"), "train", {"RANK": "0"}, time_ns=NOON_NS)
    assert run_name(directory) == "out"


def test_a_vanished_working_directory_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RunDirectoryRefused, match="no working directory"):
        create_run_directory(None, "train", {}, time_ns=NOON_NS)
    create_run_directory(tmp_path / "here", "train", {}, time_ns=NOON_NS)
