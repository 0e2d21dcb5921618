"""The directory of a run: -o DIR, or a new name under trainprof-runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar, Final

from trainprof.record.errors import TrainprofError
from trainprof.record.files import contents_of, read_run_json
from trainprof.record.masking import masked_text
from trainprof.record.run_directory import LAUNCHES, RANKS, RunDirectory
from trainprof.record.running import is_running
from trainprof.sampling.process_tree import ProcessStat, parse_stat
from trainprof.sampling.procfs import read_bytes, read_text

RUNS: Final = "trainprof-runs"
LATEST: Final = "latest"
IGNORE_FILE: Final = ".gitignore"
IGNORE_ALL: Final = "*\n"
STEM_CHARACTERS: Final = 60

UNNAMED_LAUNCH: Final = "none"  # as torchrun has it
_NEW: Final = "choose a new directory with -o, or leave -o out"


class RunDirectoryRefused(TrainprofError):
    slug: ClassVar[str] = "run-directory-refused"
    exit_code: ClassVar[int] = 125


def create_run_directory(
    output: Path | None,
    stem: str,
    environ: Mapping[str, str],
    *,
    time_ns: int,
    replaces: bool = False,
) -> RunDirectory:
    """Creates the directory for this run, or for this rank's part of it.

    `replaces`: a run that is in `output` already is removed first.

    Raises:
        RunDirectoryRefused: If it exists and is not empty, is a link, or cannot be created.
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
        if replaces:
            _remove_run(top, rank)
        if rank is not None:
            _refuse_foreign(top, environ)
    directory = RunDirectory(top if rank is None else top / RANKS / rank)
    _create(directory)
    _keep_from_git(top)
    if output is None:
        # The link is a convenience: the run goes on without.
        with contextlib.suppress(OSError):
            point_latest(top)
    return directory


def run_name(directory: RunDirectory) -> str:
    """Returns the run's name; a rank's directory has its run's."""
    path = directory.path
    return path.parent.parent.name if path.parent.name == RANKS else path.name


def _remove_run(top: Path, rank: str | None) -> None:
    """Removes a run that is over; any other directory is left, and refused later."""
    directory = RunDirectory(top)
    if top.is_symlink() or not _is_run(directory):
        return
    if rank is not None:
        raise RunDirectoryRefused(
            f"--force cannot replace {top}: the ranks of this launch share it",
            hint=f"remove it before the launch: rm -r {shlex.quote(str(top))}",
        )
    if is_running(directory, read_run_json(directory.manifest) or {}):
        raise RunDirectoryRefused(f"--force cannot replace {top}: the run still runs", hint=_NEW)
    try:
        foreign = directory.foreign_entries()
        if foreign:
            raise RunDirectoryRefused(
                f"--force cannot replace {top}: {foreign[0]} in it is not of the run",
                hint="move it away, or choose another directory with -o",
            )
        shutil.rmtree(top)
    except OSError as error:
        raise RunDirectoryRefused(
            f"{top} cannot be replaced: {error.strerror}", hint="choose another directory with -o"
        ) from error


def _create(directory: RunDirectory) -> None:
    path = directory.path
    try:
        directory.create()
    except FileExistsError:
        is_run = _is_run(directory)
        what = "already has a run" if is_run else "exists and is not an empty directory"
        hint = "--force replaces the run; or choose a new directory with -o" if is_run else _NEW
        if path.is_symlink():
            what, hint = "is a symbolic link", _NEW
        raise RunDirectoryRefused(f"{path} {what}", hint=hint) from None
    except OSError as error:
        raise RunDirectoryRefused(
            f"{path} cannot be created: {error.strerror}", hint="choose another directory with -o"
        ) from error


def _is_run(directory: RunDirectory) -> bool:
    manifest = read_run_json(directory.manifest)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    return isinstance(version, int) and (directory.events.is_dir() or directory.trials.is_dir())


def _keep_from_git(top: Path) -> None:
    """Puts a .gitignore into our own trainprof-runs, unless it has one: some scripts ask git."""
    with contextlib.suppress(OSError):
        runs = Path(RUNS).absolute()
        if runs not in top.parents or runs.is_symlink():
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(runs / IGNORE_FILE, flags, 0o666)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(IGNORE_ALL)


def _refuse_foreign(top: Path, environ: Mapping[str, str]) -> None:
    """Refuses a directory with other files; other ranks may be there already."""
    what = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if top.is_symlink() or set(os.listdir(top)) - {RANKS, LAUNCHES}:
            what = "files that are not ranks of a run"
    if what is None and not is_claimed(top, launch_of(environ)):
        what = "the ranks of another launch"
    if what is not None:
        raise RunDirectoryRefused(f"{top} holds {what}", hint=_NEW)


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
    is_unnamed = launch == UNNAMED_LAUNCH
    return f"launcher{launcher_of(environ)}" if is_unnamed else _file_name(masked_text(launch))


def _rank_part(environ: Mapping[str, str]) -> str | None:
    """Returns the rank's directory name; a restarted rank does not write over its first attempt."""
    rank = environ.get("RANK", "")
    if not rank.isdecimal():
        return None
    restarts = _restarts(environ)
    return f"{int(rank)}.restart{restarts}" if restarts else f"{int(rank)}"


def _restarts(environ: Mapping[str, str]) -> int:
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(restarts) if restarts.isdecimal() else 0


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[:STEM_CHARACTERS] or "run"


def point_latest(top: Path) -> None:
    """Points the `latest` link next to a run to it."""
    temporary = top.with_name(f".{LATEST}-{os.getpid()}")
    os.symlink(top.name, temporary)
    try:
        os.replace(temporary, top.with_name(LATEST))
    except OSError:
        os.unlink(temporary)
        raise


RUN_ID: Final = "TORCHELASTIC_RUN_ID"
_PLACE_CHARACTERS: Final = 12
_MOST_BYTES: Final = 4096
_MOST_WRAPPERS: Final = 16
# The same for all ranks of a launch, on every node; a restart may change them.
_IN_COMMON: Final = ("WORLD_SIZE", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Launch:
    """What distinguishes a rank's launch: its node or container, and its process there."""

    place: str
    launcher: str | None
    in_common: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return {"launcher": self.launcher, "in_common": dict(self.in_common)}

    def may_be(self, other: Mapping[str, object], *, is_here: bool) -> bool:
        """Whether what another rank recorded of its launch fits this one."""
        launcher, in_common = other.get("launcher"), other.get("in_common")
        if is_here and self.launcher and launcher and launcher != self.launcher:
            return False
        known = in_common if isinstance(in_common, dict) else {}
        return all(known.get(name, own) == own for name, own in self.in_common.items())


def launch_of(environ: Mapping[str, str]) -> Launch:
    """Returns the launch of the rank that this process is, by its environment."""
    # With other launchers each rank may have its own parent, a shell that sets its variables.
    launcher = launcher_of(environ) if environ.get(RUN_ID) else None
    in_common = {name: environ[name] for name in _IN_COMMON if environ.get(name)}
    return Launch(_place(), launcher, {} if _restarts(environ) else in_common)


def launcher_of(environ: Mapping[str, str]) -> str:
    """Returns the process that starts the ranks here, and when it began, if that is known.

    Of torchrun's ranks it is the nearest process above without torchrun's variables.
    """
    pid = os.getppid()
    stat = _stat(pid)
    for _ in range(_MOST_WRAPPERS if environ.get(RUN_ID) else 0):
        if stat is None or stat.parent_pid < 1 or not _is_wrapper(pid):
            break
        pid, stat = stat.parent_pid, _stat(stat.parent_pid)
    return f"{pid}" if stat is None else f"{pid}-{stat.started_ns}"


def is_claimed(top: Path, launch: Launch) -> bool:
    """Claims a directory for this launch; False where another launch has it.

    Each node leaves a file of its own, before a rank's directory is there.
    """
    launches = _launches(top / LAUNCHES)
    here = launches.get(launch.place)
    if here is not None:
        return launch.may_be(here, is_here=True)
    if not launches and _has_ranks(top):
        return False
    if not all(launch.may_be(other, is_here=False) for other in launches.values()):
        return False
    with contextlib.suppress(OSError):  # what cannot be written here fails below, and says so
        _write(top / LAUNCHES, launch)
    here = _launches(top / LAUNCHES).get(launch.place)
    return here is None or launch.may_be(here, is_here=True)


def _write(folder: Path, launch: Launch) -> None:
    """Writes the file of this node, unless another rank has."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / f"{launch.place}.json", flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(json.dumps(launch.to_json()))


def _launches(folder: Path) -> dict[str, Mapping[str, object]]:
    """Returns what each node has recorded; a file that is being written counts as empty."""
    launches: dict[str, Mapping[str, object]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.suffix == ".json":
                launches[path.stem] = _read(path)
    return launches


def _read(path: Path) -> Mapping[str, object]:
    try:
        launch = json.loads(contents_of(path, _MOST_BYTES) or b"")
    except (ValueError, RecursionError):
        return {}
    return launch if isinstance(launch, dict) else {}


def _has_ranks(top: Path) -> bool:
    try:
        return any((top / RANKS).iterdir())
    except OSError:
        return False


def _place() -> str:
    """Returns a digest of the node, or of the container on it."""
    names = [os.uname().nodename, (read_text("/proc/sys/kernel/random/boot_id") or "").strip()]
    with contextlib.suppress(OSError):
        names.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:_PLACE_CHARACTERS]


def _stat(pid: int) -> ProcessStat | None:
    """Returns the kernel's record of a process, its start in ticks."""
    text = read_bytes(f"/proc/{pid}/stat")
    return None if text is None else parse_stat(text, 1, 1)


def _is_wrapper(pid: int) -> bool:
    variables = (read_bytes(f"/proc/{pid}/environ") or b"").split(b"\0")
    return any(variable.startswith(f"{RUN_ID}=".encode()) for variable in variables)
