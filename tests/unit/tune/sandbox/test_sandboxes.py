"""Whether there is a sandbox, what it is told, and what is left of it; none is made here."""

from __future__ import annotations

import json
import os
import stat
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
    with pytest.raises(NoSandbox, match="Linux"):
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


REFUSED = "trainprof: no sandbox: [Errno 12] mount on /a\n"


@pytest.mark.parametrize(
    ("status", "stderr", "act", "reason"),
    [
        (0, "", lambda files: None, None),
        (0, "", lambda files: (files / "overwritten").write_text("by it"), "files outside"),
        (0, "", lambda files: (files / "created").touch(), "files outside"),
        (0, "", lambda files: (files / "removed").unlink(), "files outside"),
        (3, "", lambda files: None, "read-only"),
        (1, "", lambda files: None, "self-test failed"),
        (125, REFUSED, lambda files: None, "[Errno 12] mount"),
    ],
)
def test_a_sandbox_is_taken_for_one_only_if_its_test_left_files_as_they_were(
    tmp_path, monkeypatch, status, stderr, act, reason
):
    """The self-test's program does what it is told in the place of a kernel."""

    def run(words, **_):
        files, record = map(Path, words[-3:-1])
        (record / "record").touch()
        act(files)
        return SimpleNamespace(returncode=status, stderr=stderr.encode())

    monkeypatch.setattr(sandbox.subprocess, "run", run)
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


def test_caches_are_those_that_variables_name_and_one_in_another_is_left_out(monkeypatch, tmp_path):
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fast/inductor"))
    expected = [".cache", ".triton", "fast/inductor", ".nv/ComputeCache"]
    assert sandbox._caches() == [str(tmp_path / name) for name in expected]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fast"))
    assert str(tmp_path / "fast/inductor") not in sandbox._caches()


@pytest.mark.parametrize("mode", [0, stat.S_IXUSR])
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


# Trials without a sandbox: what is copied to their working directory, and what is linked

LARGE = 4 << 20


def copied(cwd: Path, but_for: str = "trainprof-runs/t") -> dict[str, Path]:
    """Returns what is in the scratch directory, by name."""
    scratch = cwd.parent / "scratch"
    scratch.mkdir()
    place = scratch_directory(scratch, cwd, but_for=cwd / but_for)
    return {path.name: path for path in place.iterdir()}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


def test_small_files_are_copied_and_all_else_is_linked(cwd):
    (cwd / "log").write_text("before")
    (cwd / "data/deep").mkdir(parents=True)
    (cwd / "data/deep/x").write_text("x")
    (cwd / "relative").symlink_to("data/deep/x")
    (cwd / "nowhere").symlink_to("gone")
    os.mkfifo(cwd / "pipe")
    for name, size in (("limit.bin", LARGE), ("large.bin", LARGE + 1)):
        with (cwd / name).open("wb") as file:
            file.truncate(size)
    (cwd / "trainprof-runs/tune-x").mkdir(parents=True)
    there = copied(cwd, "trainprof-runs/tune-x")  # which is left out
    links = {name for name, path in there.items() if path.is_symlink()}
    assert links == {"data", "relative", "nowhere", "pipe", "large.bin"}
    assert there.keys() - links == {"log", "limit.bin"}
    assert (there["data"] / "deep/x").read_text() == there["relative"].read_text() == "x"
    assert there["large.bin"].resolve() == cwd / "large.bin"


def test_no_more_is_copied_than_a_limit_in_all(cwd, monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_COPIED_BYTES", 25)
    for number in range(5):
        (cwd / str(number)).write_bytes(bytes(10))
    copies = [path for path in copied(cwd).values() if not path.is_symlink()]
    assert len(copies) == 2
