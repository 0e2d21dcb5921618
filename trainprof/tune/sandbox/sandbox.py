"""Checks whether the kernel can sandbox trials, and builds the command that enters the sandbox."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from trainprof.launch.manifest import host_now
from trainprof.record.errors import TrainprofError
from trainprof.tune.sandbox import enter

# Next to the scratch directories: changes of caches, shared by trials.
CACHES: Final = "caches"
# Our own Python, isolated: the script's may be another, and site-packages are not needed.
_ENTER: Final = (sys.executable, "-I", "-S", enter.__file__)
_TEST_TIMEOUT_S: Final = 30.0
_SHARE_OF_MEMORY: Final = 0.5
_APPARMOR: Final = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
# The self-test inside the sandbox; afterwards the files outside are checked.
_TEST: Final = """
import os, sys
files, record, cwd = sys.argv[1:]
with open(f"{files}/overwritten", "w") as file: file.write("by the trial")
with open(f"{files}/created", "w") as file: file.write("by the trial")
os.remove(f"{files}/removed")
os.rename(f"{files}/renamed", f"{files}/new_name")
with open(f"{record}/record", "w") as file: file.write("by the trial")
sys.exit(0 if os.access(cwd, os.W_OK) else 3)
"""
_CANNOT_WRITE: Final = 3
# Larger files are linked, so writes to them reach the originals.
_LARGEST_COPY_BYTES: Final = 4 << 20
_MOST_COPIED_BYTES: Final = 256 << 20


class NoSandbox(TrainprofError):
    slug: ClassVar[str] = "no-sandbox"
    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox that all trials of a `tune` run use.

    Attributes:
        overlays: Directories under an overlay each; the rest is read-only.
        caches: Cache directories whose changes trials share.
        memory_bytes: Limit of writes kept in memory; None keeps them on disk, next to the record.
    """

    overlays: tuple[str, ...]
    caches: tuple[str, ...]
    memory_bytes: int | None
    cwd: str

    def words(self, scratch: Path, record: Path) -> tuple[str, ...]:
        """Returns the command that runs another one in the sandbox of a trial.

        Writes go to `scratch`, with CACHES next to it; only `record` is really written.
        """
        return _words(
            overlays=self.overlays,
            caches=self.caches,
            shared=str(scratch.parent / CACHES),
            memory_bytes=self.memory_bytes,
            scratch=str(scratch),
            records=[str(record)],
            cwd=self.cwd,
            parent=os.getpid(),
        )


def words_without_sandbox(cwd: Path) -> tuple[str, ...]:
    """Returns the command that runs another one in a directory, and ends with this process."""
    return _words(overlays=None, cwd=str(cwd), parent=os.getpid())


def make_sandbox(directory: Path, words: Sequence[str]) -> Sandbox:
    """Finds the writable directories, and tests in `directory` that a sandbox protects them.

    Paths in `words`, the command, are searched first. Raises NoSandbox.
    """
    if sys.platform != "linux":
        raise _no_sandbox("it needs Linux")
    cwd = os.getcwd()
    named = [os.path.join(cwd, word.rpartition("=")[2]) for word in words if "\0" not in word]
    homes = [os.path.expanduser("~"), tempfile.gettempdir()]
    overlays = enter.directories_to_overlay(
        enter.mounts_now(),
        [os.path.normpath(path) for path in (cwd, str(directory), *homes, *named)],
        knows_all_ids=enter.may_mount(),
    )
    on_disk = Sandbox(tuple(overlays), tuple(_caches()), None, cwd)
    # A container's file system is an overlay and cannot hold the writes of another.
    in_memory = Sandbox(on_disk.overlays, on_disk.caches, _memory_bytes(), cwd)
    reasons = []
    for sandbox in (on_disk, in_memory):
        reason = _tested(sandbox, directory)
        if reason is None:
            return sandbox
        reasons.append(reason)
    raise _no_sandbox(reasons[0])


def _no_sandbox(reason: str) -> NoSandbox:
    return NoSandbox(
        f"no sandbox for trials, so they could modify your files: {reason}",
        hint="--unsandboxed runs them in a scratch copy of the working directory",
    )


def _words(**spec: object) -> tuple[str, ...]:
    return (*_ENTER, json.dumps(spec))


def _caches() -> list[str]:
    environ = os.environ
    inductor = os.path.join(tempfile.gettempdir(), f"torchinductor_{_user()}")
    places = (
        environ.get("XDG_CACHE_HOME", "~/.cache"),
        environ.get("TRITON_CACHE_DIR", "~/.triton"),
        environ.get("TORCHINDUCTOR_CACHE_DIR", inductor),
        environ.get("CUDA_CACHE_PATH", "~/.nv/ComputeCache"),
    )
    caches = dict.fromkeys(os.path.abspath(os.path.expanduser(place)) for place in places)
    return [
        path for path in caches if not any(p != path and enter.is_inside(path, p) for p in caches)
    ]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the uid has no name
        return str(os.getuid())


def _memory_bytes() -> int:
    host = host_now()
    free, limit = host["memory_available_bytes"], host["memory_limit_bytes"]
    return int((free if limit is None else min(free, limit)) * _SHARE_OF_MEMORY)


def _tested(sandbox: Sandbox, directory: Path) -> str | None:
    """Runs a small program in a sandbox; returns why it cannot be used, None if it can."""
    try:
        place = Path(tempfile.mkdtemp(prefix=".trainprof-", dir=directory))
    except OSError as error:
        return str(error)
    names = ("files", "record", "scratch", CACHES)
    files, record, scratch, _ = paths = [place / name for name in names]
    try:
        for path in paths:
            path.mkdir(mode=0o700)
        for name in ("overwritten", "removed", "renamed"):
            (files / name).write_text("before", encoding="ascii")
        python = (sys.executable, sys.executable, "-I", "-S", "-c", _TEST)
        ended = subprocess.run(
            (*sandbox.words(scratch, record), *python, files, record, sandbox.cwd),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TEST_TIMEOUT_S,
            check=False,
        )
        if ended.returncode not in (0, _CANNOT_WRITE):
            return _refusal(ended.stderr.decode("utf-8", "replace"))
        kept = {path.name: path.read_text(encoding="ascii") for path in files.iterdir()}
        if kept != dict.fromkeys(("overwritten", "removed", "renamed"), "before"):
            return "its self-test modified files outside"
        if not (record / "record").exists():
            return "its self-test could not write its record"
        if ended.returncode == _CANNOT_WRITE and os.access(sandbox.cwd, os.W_OK):
            return "the working directory would be read-only"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        remove_tree(place)
    return None


def _refusal(stderr: str) -> str:
    """Returns why a sandbox could not be made, from the stderr of the self-test."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    why = lines[-1].rpartition("no sandbox: ")[2] if lines else "its self-test failed"
    if "namespace" not in why:
        return why
    try:
        is_apparmor = Path(_APPARMOR).read_text(encoding="ascii").strip() == "1"
    except OSError:
        is_apparmor = False
    whose = "AppArmor" if is_apparmor else "the kernel"
    return f"{whose} refuses namespaces ({why})"


def remove_tree(path: Path) -> None:
    """Removes a tree that trials wrote, whatever its modes."""

    with contextlib.suppress(OSError):
        for within, names, _ in os.walk(path):
            for name in names:
                inner = os.path.join(within, name)
                if not os.path.islink(inner):
                    os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def scratch_directory(scratch: Path, cwd: Path, *, but_for: Path) -> Path:
    """Makes `scratch` a copy of `cwd` without `but_for`: small files copied, the rest linked."""
    left = _MOST_COPIED_BYTES
    with os.scandir(cwd) as entries:
        for entry in entries:
            if Path(entry.path) in (but_for, *but_for.parents):
                continue
            with contextlib.suppress(OSError):
                size = entry.stat(follow_symlinks=False).st_size
                if entry.is_file(follow_symlinks=False) and size <= min(left, _LARGEST_COPY_BYTES):
                    shutil.copy2(entry.path, scratch / entry.name)
                    left -= size
                else:
                    (scratch / entry.name).symlink_to(entry.path)
    return scratch
