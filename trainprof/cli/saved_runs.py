"""Which runs are saved under trainprof-runs, and which one a RUN on the command line means."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.launch import placement
from trainprof.launch.placement import LATEST
from trainprof.record.errors import TrainprofError
from trainprof.record.files import read_run_json
from trainprof.record.notes import integer
from trainprof.record.run_directory import MANIFEST_SCHEMA_VERSION, RunDirectory
from trainprof.record.running import RUNNING, is_running

RUNS: Final = Path(placement.RUNS)
RUN_HELP: Final = "A run: `latest`, `latest~1`, a name, the beginning of a name, or a directory."
_LATEST: Final = re.compile(rf"{LATEST}(?:~([0-9]{{1,6}}))?")
# RUNNING of a run that does not run: it and trainprof were killed.
_FAILED: Final = frozenset({"exception", "signal", "killed", "unknown", RUNNING})
_NEWEST_NAMED: Final = 3


class RunNotFound(TrainprofError):
    slug: ClassVar[str] = "run-not-found"


class RunDamaged(TrainprofError):
    slug: ClassVar[str] = "run-damaged"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run under trainprof-runs.

    Attributes:
        parts: The run's manifest with its directory, or those of each rank's last attempt; empty
            where one cannot be read.
        started_ns: Unix time.
    """

    directory: RunDirectory
    parts: Sequence[tuple[RunDirectory, dict[str, Any]]]
    started_ns: int

    @property
    def name(self) -> str:
        return self.directory.path.name

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, of several ranks the first one's; empty where one cannot be read."""
        return self.parts[0][1] if self.parts else {}

    @property
    def is_running(self) -> bool:
        return any(is_running(directory, manifest) for directory, manifest in self.parts)

    @property
    def has_failed(self) -> bool:
        """Whether the script crashed, or it and trainprof were killed."""
        if self.is_running:
            return False
        if self.manifest.get("kind") == "tune":
            return not self.directory.summary.exists()
        return any(_reason(manifest) in _FAILED for _, manifest in self.parts)

    def size_bytes(self) -> int:
        """Returns what the run takes on the disk."""
        size = 0
        for folder, _, files in os.walk(self.directory.path):
            for file in files:
                try:
                    size += os.lstat(os.path.join(folder, file)).st_blocks * 512
                except OSError:
                    continue
        return size


def saved_runs() -> list[SavedRun]:
    """Returns the runs under trainprof-runs, the newest last."""
    try:
        paths = list(RUNS.iterdir())
    except OSError:
        return []
    runs = map(_saved_run, paths)
    return sorted((run for run in runs if run is not None), key=lambda run: run.started_ns)


def _saved_run(path: Path) -> SavedRun | None:
    top = RunDirectory(path)
    try:
        if path.is_symlink():
            return None
        places = [top] if top.manifest.is_file() else top.last_attempts()
        written = {x: x.manifest.stat().st_mtime_ns for x in places if x.manifest.is_file()}
    except OSError:  # of one run only, the others are listed
        return None
    read = [(place, read_run_json(place.manifest)) for place in written]
    if read and any(manifest is None for _, manifest in read):  # damaged: listed, never removed
        return SavedRun(top, (), min(written.values()))
    parts = [(x, manifest) for x, manifest in read if _is_ours(manifest)]
    if not parts:
        return None
    return SavedRun(top, parts, min(_started_ns(x, written[place]) for place, x in parts))


def _is_ours(manifest: Any) -> bool:
    return isinstance(manifest, dict) and isinstance(manifest.get("schema_version"), int)


def _reason(manifest: dict[str, Any]) -> str:
    end = manifest.get("exit")
    return str(end.get("reason")) if isinstance(end, dict) else "unknown"


def _started_ns(manifest: dict[str, Any], written_ns: int) -> int:
    times = manifest.get("times")
    started_ns = integer(times.get("spawned_time_ns")) if isinstance(times, dict) else None
    return written_ns if started_ns is None or started_ns < 0 else started_ns


def place_of_latest(runs: list[SavedRun]) -> int:
    """Returns the index of the run that `latest` means."""
    target = os.path.realpath(RUNS / LATEST)
    paths = [os.path.realpath(run.directory.path) for run in runs]
    return paths.index(target) if target in paths else len(runs) - 1


def find_run(name: str) -> RunDirectory:
    """Returns the run that `name` means, as RUN_HELP says.

    Raises:
        RunNotFound: If no run, or the beginning of several names, fits.
        RunDamaged: If a directory is not a run, or was written by a newer trainprof.
    """
    if not name:
        raise RunNotFound("the name of the run is empty", hint=_newest(saved_runs()))
    try:
        return _existing(name) or _by_short_name(name)
    except OSError as error:
        raise unreadable(name, error) from error


def is_saved_run(name: str) -> bool:
    """Returns whether `name` means a saved run."""
    try:
        find_run(name)
    except TrainprofError:
        return False
    return True


def unreadable(name: str, error: OSError) -> RunDamaged:
    return RunDamaged(
        f"{name} cannot be read: {error.strerror or error}", hint="check its permissions"
    )


def _existing(name: str) -> RunDirectory | None:
    candidates = [Path(name)] if os.sep in name else [Path(name), RUNS / name]
    paths = [path for path in candidates if path.is_dir()]
    for path in paths:
        directory = RunDirectory(path.resolve())
        if directory.manifest.exists() or directory.events.is_dir() or directory.ranks.is_dir():
            _check_version(directory)
            return directory
    if paths and _shortened(name, saved_runs()) is None:
        hint = _newest(saved_runs())
        raise RunDamaged(f"{paths[0]} is not a run directory: it has no manifest.json", hint=hint)
    return None


def _by_short_name(name: str) -> RunDirectory:
    runs = saved_runs()
    run = _shortened(name, runs)
    if run is not None:
        _check_version(run.directory)
        return RunDirectory(run.directory.path.resolve())
    names = [run.name for run in runs]
    several = [known for known in names if known.startswith(name)]
    if several:
        raise RunNotFound(
            f"{len(several)} runs have names that begin with {name!r}",
            hint=f"the newest of them is {several[-1]}",
        )
    if _LATEST.fullmatch(name) and runs:
        raise RunNotFound(f"no run {name}: only {len(runs)} are saved", hint=_newest(runs))
    # The beginnings, too: a name ends in a time and a random word.
    meant = {known[: len(name)]: known for known in names} | {x: x for x in (LATEST, *names)}
    near = difflib.get_close_matches(name, meant, n=1)
    hint = f"did you mean {meant[near[0]]}?" if near and runs else _newest(runs)
    raise RunNotFound(f"no run at {name}" if os.sep in name else f"no run {name!r}", hint=hint)


def _shortened(name: str, runs: list[SavedRun]) -> SavedRun | None:
    """Returns the run that `latest~2`, or the beginning of one run's name, stands for."""
    counted = _LATEST.fullmatch(name)
    if counted is not None:
        place = place_of_latest(runs) - int(counted[1] or 0)
        return runs[place] if place >= 0 else None
    fitting = [run for run in runs if run.name.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _check_version(directory: RunDirectory) -> None:
    manifest = read_run_json(directory.manifest)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > MANIFEST_SCHEMA_VERSION:
        raise RunDamaged(
            f"{directory.path} has format {version}; this trainprof reads formats up to "
            f"{MANIFEST_SCHEMA_VERSION}",
            hint="upgrade trainprof",
        )


def _newest(runs: list[SavedRun]) -> str:
    if not runs:
        return f"{RUNS.absolute()} has no runs; record one: trainprof run SCRIPT"
    names = [run.name for run in reversed(runs[-_NEWEST_NAMED:])]
    return f"newest runs: {', '.join(names)} (all: trainprof list)"
