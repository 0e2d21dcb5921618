"""Paths and files of a run directory: all that the supervisor and the script's process share.

The layout is a contract: manifest.json, summary.json, events/ (during the run with the last stack
sample of each process), samples/, sources/ (timed lines), console/ (trials), ranks/ and launches/,
trials/, and report.html, trace.json.gz or speedscope.json. Directories are 0700, files 0600.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.limit_met import AT_END, LIMIT_MET
from trainprof.record.names import EVENTS, LAST_STEP, NAME_TAKEN, SOURCES

MANIFEST_SCHEMA_VERSION: Final = 1
RANKS: Final = "ranks"
LAUNCHES: Final = "launches"
REPORT_HTML: Final = "report.html"
COMPARE_HTML: Final = "compare.html"
TRACE: Final = "trace.json.gz"
SPEEDSCOPE: Final = "speedscope.json"
STAT_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's blocks are
# A rank's directory, as launch/placement.py names it.
_RANK_NAME: Final = re.compile(r"(\d{1,9})(?:\.restart(\d{1,9}))?")
_ENTRIES: Final = re.compile(
    r"(?:(?:manifest|summary|tune|speedscope)\.json|lines\.lprof|(?:report|compare)\.html"
    r"|trace\.json\.gz)(?:\.tmp)?|inner_runs\.jsonl|tune\.lock"
    rf"|{EVENTS}|{SOURCES}|{RANKS}|{LAUNCHES}|samples|console|trials|scratch"
    rf"|{LAST_STEP}|{NAME_TAKEN}|(?:{LIMIT_MET}|{AT_END})-\d+"
)
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
    def tune_lock(self) -> Path:
        """Locked by the `tune` that runs in this directory."""
        return self.path / "tune.lock"

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

    def foreign_entries(self) -> list[str]:
        """Returns the names in the directory that no run has."""
        return sorted(x for x in os.listdir(self.path) if _ENTRIES.fullmatch(x) is None)

    def last_attempts(self) -> list[RunDirectory]:
        """Returns the directories of ranks that each had their own trainprof, in order.

        Of a restarted rank, the last attempt. [] for a run without ranks.
        """
        last: dict[int, tuple[int, RunDirectory]] = {}
        try:
            paths = [] if self.ranks.is_symlink() else list(self.ranks.iterdir())
        except OSError:
            return []
        for path in paths:
            name = _RANK_NAME.fullmatch(path.name)
            if name is None or path.is_symlink() or not path.is_dir():
                continue
            rank, attempt = int(name[1]), int(name[2] or 0)
            if rank not in last or attempt > last[rank][0]:
                last[rank] = attempt, RunDirectory(path)
        return [last[rank][1] for rank in sorted(last)]

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
