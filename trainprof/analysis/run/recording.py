"""Reads a run directory into what the analysis works on; nothing in it is trusted."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.liveness import is_alive
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.samples_file import read_samples
from trainprof.analysis.timeline.event_rewrites import with_closures
from trainprof.analysis.timeline.events import ProcessLog, load_process
from trainprof.record.log_reader import EmptyLog, UnreadableLog, log_paths, read_log
from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_file

_MAX_MANIFEST_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Recording:
    """A run as found on disk.

    Attributes:
        manifest: {} where it is missing or damaged.
        logs: Of every process that could be read.
        damage: One sentence per thing that is missing or could not be read.
        is_alive: The script's process still exists on this machine.
    """

    directory: RunDirectory
    manifest: dict[str, Any]
    logs: list[ProcessLog]
    host_lines: list[dict[str, Any]]
    process_lines: list[dict[str, Any]]
    state_lines: list[dict[str, Any]]
    gpu_lines: list[dict[str, Any]]
    damage: list[str]
    is_alive: bool

    def section(self, name: str) -> dict[str, Any]:
        """Returns an object of the manifest, {} where it is not one."""
        value = self.manifest.get(name)
        return value if isinstance(value, dict) else {}


def read_recording(directory: RunDirectory) -> Recording:
    """Reads all files of a run that can be read."""
    damage: list[str] = []
    manifest = _manifest(directory.manifest, damage)
    logs = []
    empty = []
    for path in log_paths(directory.events):
        try:
            log = read_log(path)
        except EmptyLog as error:
            empty.append(str(error))
            continue
        except UnreadableLog as error:
            damage.append(str(error))
            continue
        if not log.header:
            damage.append(f"{path.name} has a damaged header")
        if log.cut_bytes or log.unread_bytes:
            why = "is cut off" if log.cut_bytes else "is too large: its end was not read"
            damage.append(f"{path.name} {why}")
        process = load_process(log)
        if process.impossible:
            damage.append(
                f"{path.name}: impossible times, {process.impossible} of its events left out"
            )
        # Here, for the table without them is large, and nobody else needs it.
        logs.append(replace(process, events=with_closures(process.events, process.details)))
    # One of a worker that was killed as it began is no loss; the script's own would be all of it.
    if not any(log.role == "script" for log in logs):
        damage += empty
    samples = directory.samples
    return Recording(
        directory=directory,
        manifest=manifest,
        logs=logs,
        host_lines=read_samples(samples / "host.jsonl"),
        process_lines=read_samples(samples / "processes.jsonl"),
        state_lines=read_samples(samples / "states.jsonl"),
        gpu_lines=read_samples(samples / "gpus.jsonl"),
        damage=damage,
        is_alive=_is_script_alive(manifest),
    )


def manifest_of(directory: RunDirectory) -> dict[str, Any]:
    """Returns a run's manifest, {} where it is missing or damaged."""
    return _manifest(directory.manifest, [])


def manifest_of_first(directory: RunDirectory) -> dict[str, Any]:
    """Returns a run's manifest, the first rank's where each of them had a trainprof of its own.

    Those were started alike, by torchrun.
    """
    return manifest_of(directory) or manifest_of(RunDirectory(directory.ranks / "0"))


def _manifest(path: Path, damage: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(read_run_file(path, _MAX_MANIFEST_BYTES))
    except OSError:
        damage.append("manifest.json is missing")
        return {}
    except (ValueError, RecursionError):
        damage.append("manifest.json is damaged")
        return {}
    if not isinstance(value, dict):
        damage.append("manifest.json is damaged")
        return {}
    return value


def _is_script_alive(manifest: dict[str, Any]) -> bool:
    times = manifest.get("times")
    spawned_ns = integer(times.get("spawned_ns")) if isinstance(times, dict) else None
    return is_alive(manifest.get("script_pid"), manifest, known_ns=spawned_ns)
