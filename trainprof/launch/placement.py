"""Where a run's directory goes: -o DIR, or a new name under trainprof-runs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar, Final

from trainprof.launch.rank_launch import RUN_ID, is_claimed, launch_of, launcher_of
from trainprof.record.errors import TrainprofError
from trainprof.record.masking import masked_text
from trainprof.record.run_directory import LAUNCHES, RANKS, RunDirectory

RUNS: Final = "trainprof-runs"
LATEST: Final = "latest"
IGNORE_FILE: Final = ".gitignore"
IGNORE_ALL: Final = "*\n"
STEM_CHARACTERS: Final = 60

# torchrun's id where the user gave none
UNNAMED_LAUNCH: Final = "none"


class RunDirectoryRefused(TrainprofError):
    slug: ClassVar[str] = "run-directory-refused"
    exit_code: ClassVar[int] = 125


def create_run_directory(
    output: Path | None, stem: str, environ: Mapping[str, str], *, time_ns: int
) -> RunDirectory:
    """Makes the directory for this run, or for this rank's part of it.

    Args:
        output: As -o gave it, or None.
        stem: The script's short name.
        environ: The environment trainprof was started with: RANK and torchrun's variables.
        time_ns: `time.time_ns` of the start.

    Raises:
        RunDirectoryRefused: If it exists and is not empty, is a symbolic link, or cannot be made.
    """
    rank = _rank_part(environ)
    try:
        start = Path(output or RUNS).absolute()
    except OSError as error:  # the working directory is gone
        raise RunDirectoryRefused(
            f"no working directory: {error.strerror}", hint="cd to a directory that exists"
        ) from error
    if output is None:
        top = _new_run(start, stem, environ, rank, time_ns)
    else:
        top = Path(os.path.normpath(start))
        if rank is not None:
            _refuse_foreign(top, environ)
    directory = RunDirectory(top if rank is None else top / RANKS / rank)
    _create(directory)
    _keep_from_git(top)
    if output is None:
        # The link is a convenience: the run goes on without.
        with contextlib.suppress(OSError):
            _point_latest(top)
    return directory


def run_name(directory: RunDirectory) -> str:
    """Returns the run's name; a rank's directory has its run's."""
    path = directory.path
    return path.parent.parent.name if path.parent.name == RANKS else path.name


def _create(directory: RunDirectory) -> None:
    path = directory.path
    try:
        directory.create()
    except FileExistsError:
        what = "is a symbolic link" if path.is_symlink() else "exists and is not an empty directory"
        raise RunDirectoryRefused(
            f"{path} {what}", hint="give a new directory with -o, or leave -o out"
        ) from None
    except OSError as error:
        raise RunDirectoryRefused(
            f"{path} cannot be made: {error.strerror}", hint="give another directory with -o"
        ) from error


def _keep_from_git(top: Path) -> None:
    """Puts a .gitignore into our own trainprof-runs, unless it has one: some scripts ask git.

    The file is a convenience: the run goes on without. A directory of the user's gets none.
    """
    with contextlib.suppress(OSError):
        runs = Path(RUNS).absolute()
        if runs not in top.parents or runs.is_symlink():
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(runs / IGNORE_FILE, flags, 0o666)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(IGNORE_ALL)


def _refuse_foreign(top: Path, environ: Mapping[str, str]) -> None:
    """Refuses a directory of something else; other ranks may be there already."""
    what = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if top.is_symlink() or set(os.listdir(top)) - {RANKS, LAUNCHES}:
            what = "something else than the ranks of a run"
    if what is None and not is_claimed(top, launch_of(environ)):
        what = "the ranks of another launch"
    if what is not None:
        raise RunDirectoryRefused(
            f"{top} holds {what}", hint="give a new directory with -o, or leave -o out"
        )


def _new_run(
    runs: Path, stem: str, environ: Mapping[str, str], rank: str | None, time_ns: int
) -> Path:
    safe_stem = _file_name(masked_text(stem))
    if rank is None:
        at = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
        return runs / f"{safe_stem}-{at:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"
    # All ranks must come to the same name, so it cannot hold a time or anything random.
    name = f"{safe_stem}-{_launch_id(environ)}"
    launch = launch_of(environ)
    candidate, number = runs / name, 1
    while os.path.lexists(candidate / RANKS / rank) or not is_claimed(candidate, launch):
        number += 1
        candidate = runs / f"{name}-{number}"
    return candidate


def _launch_id(environ: Mapping[str, str]) -> str:
    launch = environ.get(RUN_ID) or UNNAMED_LAUNCH
    return (
        _file_name(masked_text(launch))
        if launch != UNNAMED_LAUNCH
        else f"launcher{launcher_of(environ)}"
    )


def _rank_part(environ: Mapping[str, str]) -> str | None:
    """Returns the rank's directory name; a restarted rank does not write over its first attempt."""
    rank = environ.get("RANK", "")
    if not rank.isdecimal():
        return None
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    attempt = f".restart{int(restarts)}" if restarts.isdecimal() and int(restarts) > 0 else ""
    return f"{int(rank)}{attempt}"


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[:STEM_CHARACTERS] or "run"


def _point_latest(top: Path) -> None:
    temporary = top.with_name(f".{LATEST}-{os.getpid()}")
    os.symlink(top.name, temporary)
    try:
        os.replace(temporary, top.with_name(LATEST))
    except OSError:
        os.unlink(temporary)
        raise
