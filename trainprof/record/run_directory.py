"""Paths and files of a run directory: all that the supervisor and the script's process share.

The layout is a contract: manifest.json, summary.json, events/ (during the run with the last stack
sample of each process), samples/, sources/ (timed lines), console/ (trials), ranks/ and launches/,
trials/. Directories are 0700, files 0600.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.names import EVENTS, SOURCES

MANIFEST_SCHEMA_VERSION: Final = 1
RANKS: Final = "ranks"
LAUNCHES: Final = "launches"
STAT_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's blocks are
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run directory's paths; nothing is created by asking for them."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def ranks(self) -> Path:
        return self.path / RANKS

    @property
    def inner_runs(self) -> Path:
        """One JSON string a line: directories of the trainprof runs that the script started."""
        return self.path / "inner_runs.jsonl"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def console(self) -> Path:
        return self.path / "console"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def sources(self) -> Path:
        """Files whose lines were timed, as they ran."""
        return self.path / SOURCES

    def create(self) -> None:
        """Creates the directory and its folders, 0700; FileExistsError if it is not empty."""
        if self.path.is_symlink():
            raise FileExistsError(f"{self.path} is a symbolic link")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            if not self.path.is_dir() or any(self.path.iterdir()):
                raise
            self.path.chmod(0o700)
        self.events.mkdir(mode=0o700)
        self.samples.mkdir(mode=0o700)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as strict JSON, secrets masked, whole or not at all (temporary file, rename).

    On a full disk an existing file is overwritten, if its blocks have the room: the record of how a
    run ended must not be lost because the run filled the disk.
    """
    from trainprof.record.masking import masked_json  # compiles patterns: not in every process

    value = masked_json(value)
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, indent=1).encode("ascii") + b"\n"
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, _NEW_FILE, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if not _is_written_over(path, text):
            raise


def _is_written_over(path: Path, text: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        if len(text) > os.fstat(descriptor).st_blocks * STAT_BLOCK_BYTES:
            return False
        file.write(text)
        file.truncate()
    return True
