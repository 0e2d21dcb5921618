from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainprof.launch import placement
from trainprof.launch.placement import (
    RunDirectoryRefused,
    create_run_directory,
    launcher_of,
    run_name,
)
from trainprof.record.run_directory import LAUNCHES
from trainprof.sampling.process_tree import parse_stat

NOON_NS = 1_795_262_400 * 1_000_000_000  # 2026-11-21 12:00:00 UTC


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def create(output=None, stem="train", time_ns=NOON_NS, *, replaces=False, **environ):
    path = None if output is None else Path(output)
    directory = create_run_directory(path, stem, environ, time_ns=time_ns, replaces=replaces)
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


@pytest.mark.parametrize("output", [None, "./trainprof-runs/a/../b/mine"])
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_sees_no_run_in_our_own_folder(output):
    subprocess.run(["git", "init", "-q", "."], check=True)
    create(output)
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b""


def test_a_directory_of_the_users_gets_no_file_of_ours():
    create("mine/trainprof-runs/one")
    create("other")
    assert list(Path().rglob(".gitignore")) == []
    ignore_file = Path("trainprof-runs/.gitignore")
    ignore_file.parent.mkdir()
    ignore_file.symlink_to("elsewhere")
    create()
    assert not Path("trainprof-runs/elsewhere").exists()


@pytest.mark.parametrize("stem", ["a b/c", "-rf", "é\x1b[31m", "x" * 500, ""])
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


def test_force_replaces_a_run_and_nothing_else():
    run = create("run")
    (run / "manifest.json").write_text('{"schema_version": 1}')
    (run / "summary.json").write_text("")
    with pytest.raises(RunDirectoryRefused) as caught:
        create("run")
    assert "--force" in caught.value.hint
    with pytest.raises(RunDirectoryRefused, match="share it"):
        create("run", replaces=True, RANK="0")
    create("run", replaces=True)
    assert sorted(path.name for path in run.iterdir()) == ["events", "samples"]
    for name in ("other", "extension"):
        Path(name).mkdir()
        Path(name, "file").write_text("")
    Path("extension/manifest.json").write_text('{"schema_version": 1}')
    Path("link").symlink_to("run")
    for output in ("other", "extension", "link"):
        with pytest.raises(RunDirectoryRefused):
            create(output, replaces=True)
    assert Path("other/file").exists()
    assert Path("extension/file").exists()


def test_force_replaces_no_running_run_and_none_with_other_files():
    run = create("run")
    manifest = {
        "schema_version": 1,
        "exit": {"reason": "running"},
        "host": {"name": os.uname().nodename},
        "script_pid": os.getpid(),
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunDirectoryRefused, match="still runs"):
        create("run", replaces=True)
    (run / "manifest.json").write_text(json.dumps(manifest | {"script_pid": 2**22 + 1}))
    (run / "model.pt").write_text("")
    with pytest.raises(RunDirectoryRefused, match=r"model\.pt"):
        create("run", replaces=True)
    assert (run / "events").is_dir()
    (run / "model.pt").unlink()
    for name in ("summary.json", "manifest.json.tmp", "lines.lprof", "limit_met-12", "tune.lock"):
        (run / name).write_text("")
    assert create("run", replaces=True) == run


def test_ranks_of_one_launch_meet_whenever_they_come_and_a_second_one_gets_its_own():
    for folder in ("train-j_1", "train-j_1-2"):
        made = [create(RANK=rank, TORCHELASTIC_RUN_ID="j/1", time_ns=int(rank)) for rank in "012"]
        assert made == [Path(f"trainprof-runs/{folder}/ranks/{rank}") for rank in "012"]
    directory = create_run_directory(Path("out"), "train", {"RANK": "0"}, time_ns=NOON_NS)
    assert run_name(directory) == "out"
    create("single")
    with pytest.raises(RunDirectoryRefused):
        create("single", RANK="0")


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


def test_a_vanished_working_directory_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RunDirectoryRefused, match="no working directory"):
        create_run_directory(None, "train", {}, time_ns=NOON_NS)
    create_run_directory(tmp_path / "here", "train", {}, time_ns=NOON_NS)


@dataclass
class Machine:
    """The processes above a rank, by when they began and their parents, and on which node it is."""

    started: dict[int, int] = field(default_factory=lambda: {7: 100})
    parents: dict[int, int] = field(default_factory=dict)
    wrappers: set[int] = field(default_factory=set)
    parent: int = 7
    place: str = "here"

    def stat(self, pid):
        if pid not in self.started:
            return None
        numbers = [self.parents.get(pid, 0), *[0] * 15, 1, 0, self.started[pid], 0, 0]
        return parse_stat(f"{pid} (x) S {' '.join(map(str, numbers))}".encode(), 1, 1)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planted = Machine()
    monkeypatch.setattr(os, "getppid", lambda: planted.parent)
    monkeypatch.setattr(placement, "_stat", planted.stat)
    monkeypatch.setattr(placement, "_is_wrapper", lambda pid: pid in planted.wrappers)
    monkeypatch.setattr(placement, "_place", lambda: planted.place)
    return planted


def launched(*ranks, run_id="none", size=None, port="29500", restarts=0, output=None):
    """Makes the directories of some ranks; returns those of their runs."""
    environ = {"WORLD_SIZE": str(size or len(ranks)), "MASTER_PORT": port}
    environ |= {"TORCHELASTIC_RESTART_COUNT": str(restarts)} if restarts else {}
    environ |= {} if run_id is None else {"TORCHELASTIC_RUN_ID": run_id}
    path = None if output is None else Path(output)
    made = [
        create_run_directory(path, "train", {**environ, "RANK": str(rank)}, time_ns=1)
        for rank in ranks
    ]
    return {directory.path.parent.parent.name for directory in made}


def test_a_launcher_of_the_same_number_is_another_one(machine):
    assert launched(0, 1) == {"train-launcher7-100"}
    machine.started[7] = 200
    assert launched(0, 1, 2, 3) == {"train-launcher7-200"}


@pytest.mark.parametrize("second", [(0, 1, 2, 3), (1, 0), (3, 2, 1, 0)])
def test_a_later_launch_of_the_same_id_keeps_out_of_the_first(machine, second):
    first = launched(0, size=2, run_id="job")  # its rank 1 did not come so far
    machine.started[7] = 200
    assert launched(*second, run_id="job") == {"train-job-2"}
    assert launched(4, 5, run_id="job", size=len(second)) == {"train-job-2"}
    assert first == {"train-job"}


def test_ranks_of_other_nodes_join_and_those_of_a_larger_launch_do_not(machine):
    launched(0, 1, size=4, run_id="job")
    machine.place, machine.started[7] = "there", 150
    assert launched(2, 3, size=4, run_id="job") == {"train-job"}
    machine.started[7] = 250
    assert launched(2, 3, size=6, run_id="job") == {"train-job-2"}
    machine.place = "third"
    assert launched(4, 5, size=6, run_id="job") == {"train-job-2"}


def test_restarted_ranks_stay_with_their_launch(machine):
    launched(0, 1, run_id="job")
    machine.started[7] = 200
    launched(0, 1, run_id="job")
    assert launched(0, 1, run_id="job", restarts=1, port="5000") == {"train-job-2"}
    assert Path("trainprof-runs/train-job-2/ranks/1.restart1").is_dir()


def test_wrappers_between_a_launcher_and_its_ranks_are_none(machine):
    machine.started |= {8: 110, 9: 120}
    machine.parents |= {8: 7, 9: 7}
    machine.wrappers |= {8, 9}
    runs = []
    for rank, parent in ((0, 8), (1, 9)):
        machine.parent = parent
        runs += [launched(rank, size=2), launched(rank, size=2, run_id="job", output=None)]
    assert runs == [{"train-launcher7-100"}, {"train-job"}] * 2
    # Nobody but torchrun says who it is.
    assert launcher_of({}) == "9-120"


def test_a_given_directory_takes_the_ranks_of_one_launch(machine):
    launched(0, size=2, output="out")
    machine.place, machine.started[7] = "there", 150
    assert launched(1, size=2, output="out") == {"out"}
    machine.place = "here"
    for size in (2, 4):
        with pytest.raises(RunDirectoryRefused, match="the ranks of another launch"):
            launched(2, size=size, output="out")
    assert sorted(os.listdir("out/ranks")) == ["0", "1"]


def test_ranks_that_shells_start_meet_in_a_given_directory(machine):
    for rank in (0, 1):
        machine.started[70 + rank], machine.parent = rank, 70 + rank
        assert launched(rank, size=2, run_id=None, output="out") == {"out"}
    with pytest.raises(RunDirectoryRefused, match="another launch"):
        launched(2, size=4, run_id=None, output="out")


@pytest.mark.parametrize("text", ["", "[" * 5000, '{"in_common": 1, "launcher": {}}'])
def test_what_cannot_be_read_yet_keeps_no_rank_out(machine, text):
    folder = Path("out") / LAUNCHES
    folder.mkdir(parents=True)
    (folder / "there.json").write_text(text)
    assert launched(0, 1, output="out") == {"out"}
    (folder / "here.json").write_text(text)
    assert launched(2, size=2, output="out") == {"out"}
