"""Reads a run directory into what the analysis works on; nothing in it is trusted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.events import ProcessLog, load_process
from trainprof.analysis.sample_file import read_samples
from trainprof.record.log_reader import UnreadableLog, log_paths, read_log
from trainprof.record.run_directory import RunDirectory

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
    for path in log_paths(directory.events):
        try:
            log = read_log(path)
        except UnreadableLog as error:
            damage.append(str(error))
            continue
        if not log.header:
            damage.append(f"{path.name} has a damaged header")
        logs.append(load_process(log))
    samples = directory.samples
    return Recording(
        directory=directory,
        manifest=manifest,
        logs=logs,
        host_lines=read_samples(samples / "host.jsonl"),
        process_lines=read_samples(samples / "processes.jsonl"),
        gpu_lines=read_samples(samples / "gpus.jsonl"),
        damage=damage,
        is_alive=_is_alive(manifest),
    )


def _manifest(path: Path, damage: list[str]) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ValueError("too large")
        value = json.loads(path.read_bytes())
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


def _is_alive(manifest: dict[str, Any]) -> bool:
    pid, host = manifest.get("script_pid"), manifest.get("host")
    if not isinstance(pid, int) or pid <= 0 or not isinstance(host, dict):
        return False
    if host.get("name") != os.uname().nodename:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
