"""What a trial writes in its sandbox changes nothing outside, whatever writes it and where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import file_writers, sandboxed

SUPPORT = Path(file_writers.__file__).parent
# They need no package beyond Python's library, and a program that is on the machine.
ALWAYS = {"child", "child without environment", "isolated child", "shell", "daemon", "threads"}
ALWAYS |= {"C library", "sqlite", "descriptors", "plain"}
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def can(*command: str) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def is_root() -> bool:
    return os.geteuid() == 0 and can("unshare", "--mount")


needs_root = pytest.mark.skipif(not is_root(), reason="needs root with CAP_SYS_ADMIN")
needs_namespaces = pytest.mark.skipif(not can(*AS_USER), reason="needs user namespaces")


def written_in(
    context: Sequence[str], directory: Path, *places: Path, home: Path
) -> dict[str, Any]:
    """Runs all writers in a sandbox that is made in a context; returns what that came to."""
    command = [sys.executable, str(SUPPORT / "sandboxed.py"), directory, *places]
    done = subprocess.run(
        [*context, *map(str, command)],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(SUPPORT.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check(result: dict[str, Any], places: int) -> None:
    assert "reason" not in result
    assert result["changed"] == []
    assert (result["status"], result["record"]) == (0, "by a trial")
    lines = result["output"].splitlines()
    assert [line for line in lines if line.startswith("failed")] == []
    for name in ALWAYS:
        assert lines.count(f"done {name}") == places, name
    assert result["is_scratch_gone"]


def test_without_a_sandbox_the_writers_change_files(tmp_path: Path) -> None:
    file_writers.make_place(tmp_path / "work")
    before = sandboxed.digests([tmp_path / "work"])
    command = [sys.executable, SUPPORT / "file_writers.py", tmp_path / "work"]
    subprocess.run(command, check=True, capture_output=True)
    after = sandboxed.digests([tmp_path / "work"])
    names = {Path(path).name for path in before if before[path] != after.get(path)}
    assert names >= {"kept.txt", "removed.txt", "renamed.txt", "leaf.txt", "base.sqlite"}


@pytest.mark.proves("Tuning", "files that trials change by any program, as root")
@needs_root
def test_as_root_nothing_outside_is_changed(tmp_path: Path) -> None:
    places = [
        tmp_path / name for name in ("work", "work/below", "home", "second", "name:with,odd\\")
    ]
    (tmp_path / "second").mkdir()
    mount = f"mount -t tmpfs second {tmp_path / 'second'}"
    context = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    result = written_in(context, tmp_path / "tune", *places, home=places[2])
    check(result, len(places))
    assert not result["is_in_memory"]


@pytest.mark.proves("Tuning", "as an ordinary user, in a group's directory too")
@needs_namespaces
def test_as_an_ordinary_user_nothing_outside_is_changed(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("work", "work/below", "home", "second", "team/mine")]
    for path in (tmp_path / "second", tmp_path / "team"):
        path.mkdir()
    if os.geteuid() == 0:  # else it is the user's own
        os.chown(tmp_path / "team", 65534, os.getegid())
        (tmp_path / "team").chmod(0o2775)
    mount = f"mount -t tmpfs second {tmp_path / 'second'}"
    as_user = " ".join(AS_USER)
    context = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    context = (*context, f'{mount} && exec {as_user} "$@"', "sh")
    check(written_in(context, tmp_path / "tune", *places, home=places[2]), len(places))


@pytest.mark.proves("Tuning", "on a container's overlay")
@needs_root
def test_in_a_container_writes_are_kept_in_memory(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    script = f"""
    mount -t tmpfs layers {root} && cd {root} && mkdir upper work merged &&
    mount -t overlay container -o lowerdir=/,upperdir=upper,workdir=work merged &&
    for place in dev proc sys; do mount --rbind /$place merged/$place || exit; done
    exec chroot merged "$@"
    """
    places = [tmp_path / name for name in ("work", "home")]
    context = ("unshare", "--mount", "sh", "-c", script, "sh")
    result = written_in(context, tmp_path / "tune", *places, home=places[1])
    check(result, len(places))
    assert result["is_in_memory"]


@needs_namespaces
def test_where_the_kernel_refuses_namespaces_the_reason_is_one_line(tmp_path: Path) -> None:
    refuse = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv"
    refuse += ' --bounding-set=-sys_admin --inh-caps=-all "$@"'
    context = ("unshare", "--user", "--map-root-user", "sh", "-c", refuse, "sh")
    result = written_in(context, tmp_path / "tune", tmp_path / "work", home=tmp_path)
    assert "refuses namespaces (" in result["reason"]
    assert "\n" not in result["reason"]
