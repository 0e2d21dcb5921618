"""Scripts run as trials are: what they write goes to a scratch directory."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.session import read_recordings, run_hooked

from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Topic


def run_contained(
    words: Sequence[str | Path], cwd: Path, run: Path, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Runs python with `words` as the script of a trial, without a supervisor."""
    options = {"trial": TrialOptions(scratch=run / "scratch").to_json(), **more.pop("options", {})}
    return run_hooked(words, cwd, run, options=options, **more)


def snapshot(root: Path) -> list[tuple[Any, ...]]:
    """Returns all that a write to a tree would show in: content, times, modes, identities."""
    seen = []
    for path in (root, *sorted(root.rglob("*"))):
        status = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        facts = (status.st_ino, status.st_mode, status.st_mtime_ns, status.st_nlink, content)
        seen.append((str(path), *facts))
    return seen


def escaped(run: Path) -> list[str]:
    """Returns what the processes of a trial told of as not contained."""
    return [
        one
        for recording in read_recordings(run / "events")
        for note in recording.notes(Topic.TRIAL)
        for one in note.get("uncontained", [])
    ]


def faults(run: Path) -> list[Any]:
    return [
        note
        for recording in read_recordings(run / "events")
        for note in recording.notes(Topic.PROBE_FAILED)
    ]
