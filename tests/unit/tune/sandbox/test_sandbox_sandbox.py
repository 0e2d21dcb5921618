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
    words_without_sandbox,
)

MADE = Sandbox(("/home/u", "/tmp"), ("/home/u/.cache",), None, "/home/u/p")


def test_the_command_of_a_trial_says_what_is_covered_and_what_is_written_in_earnest() -> None:
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


def test_without_a_sandbox_it_covers_nothing() -> None:
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


def test_what_trials_write_is_kept_on_disk_and_in_memory_where_that_is_refused(
    plant: Callable[..., Kernel], tmp_path: Path
) -> None:
    plant(None)
    assert make_sandbox(tmp_path, ["train.py"]).memory_bytes is None
    kernel = plant("overlays are not stacked", None)
    made = make_sandbox(tmp_path, ["train.py"])
    assert (made.memory_bytes, made.overlays) == (5 << 30, ("/home/u",))
    assert [tried.memory_bytes for tried in kernel.tried] == [None, 5 << 30]


def test_where_there_is_none_the_first_reason_is_said_and_the_way_without(
    plant: Callable[..., Kernel], tmp_path: Path
) -> None:
    plant("AppArmor refuses namespaces", "memory is refused too")
    with pytest.raises(NoSandbox) as refused:
        make_sandbox(tmp_path, ["train.py"])
    assert str(refused.value) == (
        "No sandbox for trials: AppArmor refuses namespaces. They would write to your files."
    )
    assert "--unsandboxed" in (refused.value.hint or "")
    assert refused.value.exit_code == 2


def test_there_is_none_but_on_linux(
    plant: Callable[..., Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = plant()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoSandbox, match="it takes Linux"):
        make_sandbox(tmp_path, ["train.py"])
    assert kernel.tried == []


def test_paths_that_the_command_names_are_looked_at_first(
    plant: Callable[..., Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    stderr: str,
    act: Callable[[Path, Path], object],
    reason: str | None,
) -> None:
    monkeypatch.setattr(sandbox.subprocess, "run", Program(status, stderr, act))
    tried = Sandbox((), (), None, str(tmp_path))
    made = sandbox._tested(tried, tmp_path)
    assert made is None if reason is None else reason in (made or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("restricted", "whose"), [("1\n", "AppArmor"), ("0\n", "the kernel")])
def test_who_refuses_namespaces_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restricted: str, whose: str
) -> None:
    (tmp_path / "restrict").write_text(restricted)
    monkeypatch.setattr(sandbox, "_APPARMOR", str(tmp_path / "restrict"))
    why = sandbox._refusal("trainprof: no sandbox: [Errno 1] not permitted: 'user namespace'\n\n")
    assert why.startswith(f"{whose} refuses namespaces ([Errno 1] not permitted")
    monkeypatch.setattr(sandbox, "_APPARMOR", str(tmp_path / "gone"))
    assert sandbox._refusal("no sandbox: user namespace").startswith("the kernel refuses")


def test_caches_are_those_that_variables_name_and_one_in_another_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fast/inductor"))
    expected = [".cache", ".triton", "fast/inductor", ".nv/ComputeCache"]
    assert sandbox._caches() == [str(tmp_path / name) for name in expected]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fast"))
    assert str(tmp_path / "fast/inductor") not in sandbox._caches()


@pytest.mark.parametrize("mode", [0, stat.S_IRUSR, stat.S_IXUSR])
def test_what_trials_wrote_is_removed_whatever_modes_it_has(tmp_path: Path, mode: int) -> None:
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


@pytest.mark.parametrize("is_there", [True, False])
def test_the_directory_above_is_left_with_its_mode(tmp_path: Path, is_there: bool) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o755)
    if is_there:
        (above / "scratch").mkdir()
    remove_tree(above / "scratch")
    assert stat.S_IMODE(above.stat().st_mode) == 0o755
