"""Whether there is a sandbox, what it is told, and what is left of it; none is made here."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainprof.tune.sandbox import sandbox
from trainprof.tune.sandbox.sandbox import (
    NoSandbox,
    Sandbox,
    make_sandbox,
    remove_tree,
    scratch_directory,
    words_without_sandbox,
)

MADE = Sandbox(("/home/u", "/tmp"), ("/home/u/.cache",), None, "/home/u/p")


def test_the_command_of_a_trial_says_what_is_covered_and_what_is_written_in_earnest():
    *program, spec = MADE.words(Path("/runs/t/scratch/a"), Path("/runs/t/trials/a"))
    assert program == [sys.executable, "-I", "-S", sandbox.enter.__file__]
    assert json.loads(spec) == {
        "overlays": ["/home/u", "/tmp"],
        "caches": ["/home/u/.cache"],
        "shared": "/runs/t/scratch/caches",
        "memory_bytes": None,
        "scratch": "/runs/t/scratch/a",
        "records": ["/runs/t/trials/a"],
        "cwd": "/home/u/p",
        "parent": os.getpid(),
    }


def test_without_a_sandbox_it_covers_nothing():
    spec = json.loads(words_without_sandbox(Path("/scratch"))[-1])
    assert spec == {"overlays": None, "cwd": "/scratch", "parent": os.getpid()}


class Kernel:
    """Refuses sandboxes for the reasons that it is given, in order; `tried` lists those."""

    def __init__(self, *reasons: str | None) -> None:
        self._reasons = list(reasons)
        self.tried: list[Sandbox] = []
        self.named: list[str] = []

    def tested(self, tried: Sandbox, directory: Path) -> str | None:
        self.tried.append(tried)
        return self._reasons.pop(0)

    def overlays(self, mounts: object, named: Sequence[str], *, knows_all_ids: bool) -> list[str]:
        self.named += named
        return ["/home/u"]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def planted(*reasons: str | None) -> Kernel:
        kernel = Kernel(*reasons)
        monkeypatch.setattr(sandbox, "_tested", kernel.tested)
        monkeypatch.setattr(sandbox.enter, "directories_to_overlay", kernel.overlays)
        monkeypatch.setattr(sandbox.enter, "mounts_now", dict)
        monkeypatch.setattr(sandbox.enter, "may_mount", lambda: False)
        monkeypatch.setattr(sandbox, "_memory_bytes", lambda: 5 << 30)
        monkeypatch.setattr(sys, "platform", "linux")
        return kernel

    return planted


@pytest.mark.parametrize(
    ("reasons", "memory"),
    [
        ([None], [None]),
        (["overlays are not stacked", None], [None, 5 << 30]),  # on disk that is refused
        (["AppArmor refuses namespaces", "memory is refused too"], [None, 5 << 30]),
    ],
)
def test_what_trials_write_is_kept_on_disk_else_in_memory_else_nowhere(
    plant, tmp_path, reasons, memory
):
    kernel = plant(*reasons)
    if reasons[-1] is None:
        made = make_sandbox(tmp_path, ["train.py"])
        assert (made.memory_bytes, made.overlays) == (memory[-1], ("/home/u",))
    else:
        with pytest.raises(NoSandbox) as refused:
            make_sandbox(tmp_path, ["train.py"])
        assert str(reasons[0]) in str(refused.value)  # the first reason
        assert "--unsandboxed" in (refused.value.hint or "")
        assert refused.value.exit_code == 2
    assert [tried.memory_bytes for tried in kernel.tried] == memory


def test_there_is_none_but_on_linux(plant, tmp_path, monkeypatch):
    kernel = plant()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoSandbox, match="it takes Linux"):
        make_sandbox(tmp_path, ["train.py"])
    assert kernel.tried == []


def test_paths_that_the_command_names_are_looked_at_first(plant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = plant(None)
    make_sandbox(tmp_path / ".", ["train.py", "--data=/data/x/../y", "--out", "runs", "a\0b"])
    here = os.getcwd()
    for path in (here, f"{here}/train.py", "/data/y", f"{here}/runs", os.path.expanduser("~")):
        assert os.path.normpath(path) in kernel.named
    assert not any("\0" in path for path in kernel.named)


class Program:
    """The self-test's program, which does what it is told in the place of a kernel."""

    def __init__(self, status: int, stderr: str, act: Callable[[Path, Path], object]) -> None:
        self._ended = SimpleNamespace(returncode=status, stderr=stderr.encode())
        self._act = act

    def __call__(self, words: tuple[str | Path, ...], **_: object) -> object:
        files, record = words[-3:-1]
        self._act(Path(files), Path(record))
        return self._ended


def recorded(files: Path, record: Path) -> None:
    (record / "record").touch()


def changed(files: Path, record: Path) -> None:
    recorded(files, record)
    (files / "overwritten").write_text("by the trial")


def created(files: Path, record: Path) -> None:
    recorded(files, record)
    (files / "created").touch()


def hung(files: Path, record: Path) -> None:
    raise subprocess.TimeoutExpired("python", 30.0)


@pytest.mark.parametrize(
    ("status", "stderr", "act", "reason"),
    [
        (0, "", recorded, None),
        (0, "", changed, "a test of it changed files outside"),
        (0, "", created, "a test of it changed files outside"),
        (0, "", lambda files, record: (files / "removed").unlink(), "changed files outside"),
        (0, "", lambda files, record: None, "a test of it could not be recorded"),
        (3, "", recorded, "the working directory would be read-only in it"),
        (1, "", recorded, "its test failed"),
        (125, "trainprof: no sandbox: [Errno 12] mount on /a\n", recorded, "[Errno 12] mount"),
        (0, "", hung, "timed out"),
    ],
)
def test_a_sandbox_is_taken_for_one_only_if_its_test_left_files_as_they_were(
    tmp_path, monkeypatch, status, stderr, act, reason
):
    monkeypatch.setattr(sandbox.subprocess, "run", Program(status, stderr, act))
    tried = Sandbox((), (), None, str(tmp_path))
    made = sandbox._tested(tried, tmp_path)
    assert made is None if reason is None else reason in (made or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("restricted", "whose"), [("1\n", "AppArmor"), ("0\n", "the kernel")])
def test_who_refuses_namespaces_is_named(tmp_path, monkeypatch, restricted, whose):
    (tmp_path / "restrict").write_text(restricted)
    monkeypatch.setattr(sandbox, "_APPARMOR", str(tmp_path / "restrict"))
    why = sandbox._refusal("trainprof: no sandbox: [Errno 1] not permitted: 'user namespace'\n\n")
    assert why.startswith(f"{whose} refuses namespaces ([Errno 1] not permitted")
    monkeypatch.setattr(sandbox, "_APPARMOR", str(tmp_path / "gone"))
    assert sandbox._refusal("no sandbox: user namespace").startswith("the kernel refuses")


def test_caches_are_those_that_variables_name_and_one_in_another_is_left_out(monkeypatch, tmp_path):
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fast/inductor"))
    expected = [".cache", ".triton", "fast/inductor", ".nv/ComputeCache"]
    assert sandbox._caches() == [str(tmp_path / name) for name in expected]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fast"))
    assert str(tmp_path / "fast/inductor") not in sandbox._caches()


@pytest.mark.parametrize("mode", [0, stat.S_IRUSR, stat.S_IXUSR])
def test_what_trials_wrote_is_removed_whatever_modes_it_has(tmp_path, mode):
    top = tmp_path / "scratch"
    (top / "0/work/work").mkdir(parents=True)
    (top / "0/work/work/x").touch()
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "kept").touch()
    (top / "0/work/link").symlink_to(outside)
    for path in (top / "0/work/work", top / "0/work", top):
        path.chmod(mode)
    remove_tree(top)
    assert not top.exists()
    assert (outside / "kept").exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750
    remove_tree(top)  # of nothing, nothing


def test_the_directory_above_is_left_with_its_mode(tmp_path):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o755)
    for _ in range(2):
        remove_tree(above / "scratch")
        assert stat.S_IMODE(above.stat().st_mode) == 0o755
        (above / "scratch").mkdir()


# Trials without a sandbox: what is copied to their working directory, and what is linked

LARGE = 4 << 20


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (tmp_path / "scratch").mkdir()
    place.mkdir()
    return place


def copied(cwd: Path, but_for: Path | None = None) -> dict[str, Path]:
    """Returns what is in the scratch directory, by name."""
    scratch = cwd.parent / "scratch"
    place = scratch_directory(scratch, cwd, but_for=but_for or cwd / "trainprof-runs/t")
    assert place == scratch
    return {path.name: path for path in place.iterdir()}


def test_small_files_are_copied_and_all_else_is_linked(cwd):
    (cwd / "log").write_text("before")
    (cwd / "run.sh").write_text("#!/bin/sh\n")
    (cwd / "run.sh").chmod(0o755)
    (cwd / "data/deep").mkdir(parents=True)
    (cwd / "data/deep/x").write_text("x")
    (cwd / "relative").symlink_to("data/deep/x")
    (cwd / "nowhere").symlink_to("gone")
    os.mkfifo(cwd / "pipe")
    for name, size in (("limit.bin", LARGE), ("large.bin", LARGE + 1)):
        with (cwd / name).open("wb") as file:
            file.truncate(size)
    (cwd / "trainprof-runs/tune-x").mkdir(parents=True)
    there = copied(cwd, cwd / "trainprof-runs/tune-x")  # which is left out
    links = {name for name, path in there.items() if path.is_symlink()}
    assert links == {"data", "relative", "nowhere", "pipe", "large.bin"}
    assert there.keys() - links == {"log", "run.sh", "limit.bin"}
    assert (there["data"] / "deep/x").read_text() == there["relative"].read_text() == "x"
    assert there["large.bin"].resolve() == cwd / "large.bin"
    # The originals stay when copies are written.
    assert os.access(there["run.sh"], os.X_OK)
    with there["log"].open("a") as file:
        file.write(" and by the trial")
    there["run.sh"].unlink()
    assert (cwd / "log").read_text() == "before"
    assert (cwd / "run.sh").exists()


def test_no_more_is_copied_than_a_limit_in_all(cwd, monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_COPIED_BYTES", 25)
    for number in range(5):
        (cwd / str(number)).write_bytes(bytes(10))
    copies = [path for path in copied(cwd).values() if not path.is_symlink()]
    assert len(copies) == 2


def test_what_cannot_be_read_is_linked_or_left_out_and_the_rest_is_there(cwd, monkeypatch):
    for name in ("secret", "train.py"):
        (cwd / name).write_text(name)
    copy = sandbox.shutil.copy2

    def refused(source: str, target: Path) -> object:
        if source.endswith("secret"):
            raise PermissionError
        return copy(source, target)

    monkeypatch.setattr(sandbox.shutil, "copy2", refused)
    assert copied(cwd)["train.py"].read_text() == "train.py"
