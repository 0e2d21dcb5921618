"""Reads a run directory for the analysis; nothing in it is trusted."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainprof.analysis.run.metadata import MAX_NUMBER
from trainprof.analysis.statistics.time_weighted import Line
from trainprof.analysis.summary.run_summary import RECORDING_STOPPED
from trainprof.analysis.timeline.event_rewrites import with_closures
from trainprof.analysis.timeline.events import ProcessLog, load_process
from trainprof.record.files import open_run_file, read_run_file
from trainprof.record.log_reader import EmptyLog, UnreadableLog, log_paths, read_log
from trainprof.record.run_directory import RunDirectory
from trainprof.record.running import is_alive, spawned_ns
from trainprof.record.schema import MAX_WRITTEN_BYTES, Stop, Topic

_MAX_MANIFEST_BYTES: Final = 1 << 24
# Of a larger file every n-th line is read, and the last. As objects the sampler's lines take about
# five times their size, the worst possible file about twenty.
MAX_READ_BYTES: Final = 32 << 20
# The sampler writes shorter lines; a damaged file may be one line, ...
MAX_LINE_BYTES: Final = 1 << 20
# ... or a hole of any size: reading stops after this many bytes without a line end.
MAX_HOLE_BYTES: Final = 64 << 20
MAX_BYTES: Final = 1 << 20
_STOPS: Final[dict[int, str]] = {
    Stop.LARGE: f"its log reached the limit of {MAX_WRITTEN_BYTES >> 30} GiB per process",
    Stop.LITTLE_ROOM: "the disk was nearly full",
}


@dataclass(frozen=True, slots=True)
class Recording:
    """A run as read from disk.

    Attributes:
        manifest: {} where it is missing or damaged.
        logs: Of every process that could be read.
        damage: One sentence per missing or unreadable file.
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
    damage: list[str] = []
    manifest = _manifest(directory.manifest, damage)
    logs, empty = [], []
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
            damage.append(f"the header of {path.name} is damaged")
        if log.cut_bytes or log.unread_bytes:
            why = "is truncated" if log.cut_bytes else "is too large: its end was not read"
            damage.append(f"{path.name} {why}")
        process = load_process(log)
        if process.impossible:
            damage.append(f"{path.name}: {process.impossible} events with impossible times skipped")
        # Here, to free the large table without closures.
        logs.append(replace(process, events=with_closures(process.events, process.details)))
    # An empty log of a killed worker does not matter; the script's log would be everything.
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
        is_alive=is_alive(manifest.get("script_pid"), manifest, known_ns=spawned_ns(manifest)),
    )


def manifest_of(directory: RunDirectory) -> dict[str, Any]:
    return _manifest(directory.manifest, [])


def manifest_of_first(directory: RunDirectory) -> dict[str, Any]:
    """Returns a run's manifest; the first rank's where each rank has its own trainprof."""
    return manifest_of(directory) or manifest_of(RunDirectory(directory.ranks / "0"))


def _manifest(path: Path, damage: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(read_run_file(path, _MAX_MANIFEST_BYTES))
    except OSError:
        damage.append("manifest.json is missing")
        return {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        damage.append("manifest.json is damaged")
        return {}
    return value


def read_samples(path: Path, max_bytes: int = MAX_READ_BYTES) -> list[Line]:
    """Returns a samples file's lines in time order, whatever the file's state.

    Lines that are truncated, damaged, without a time or not a JSON object are skipped; NaN and
    infinity become None. Of a file larger than `max_bytes` every n-th line is read.
    """
    try:
        with os.fdopen(open_run_file(path), "rb") as file:
            stride = max(1, math.ceil(os.fstat(file.fileno()).st_size / max_bytes))
            parsed = [_parse(line) for line in _every(file, stride)]
    except OSError:
        return []
    lines = [line for line in parsed if line is not None]
    lines.sort(key=lambda line: line["t_ns"])
    return lines


def _every(file: BinaryIO, stride: int) -> Iterator[bytes]:
    """Yields every `stride`-th whole line and the last one, without a truncated end."""
    skipped: bytes | None = None
    is_middle = False
    count = hole_bytes = 0
    while hole_bytes < MAX_HOLE_BYTES and (part := file.readline(MAX_LINE_BYTES)):
        is_whole = part.endswith(b"\n")
        if is_whole and not is_middle:
            if count % stride == 0:
                yield part
                skipped = None
            else:
                skipped = part
            count += 1
        is_middle = not is_whole
        hole_bytes = 0 if is_whole else hole_bytes + len(part)
    if skipped is not None:
        yield skipped


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    t_ns = line.get("t_ns")
    is_time = isinstance(t_ns, int) and not isinstance(t_ns, bool) and 0 <= t_ns < MAX_NUMBER
    return line if is_time else None


def inner_runs(directory: RunDirectory) -> list[str]:
    """Returns the directories of the runs inside this one, as these recorded them."""
    try:
        lines = read_run_file(directory.inner_runs, MAX_BYTES).splitlines()
    except (OSError, ValueError):
        return []
    paths = []
    for line in lines:
        try:
            path = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(path, str):
            paths.append(path)
    return paths


def faults_of(recording: Recording, origin_ns: int) -> list[str]:
    """Returns a sentence for each fault of the supervisor, the files and the probes."""
    noted = recording.manifest.get("faults")
    faults = [str(fault) for fault in noted] if isinstance(noted, list) else []
    faults += recording.damage
    faults += [fault for log in recording.logs for fault in _of_probes(log)]
    for log in recording.logs:
        if log.stopped_ns is not None:
            after_s = (log.stopped_ns - origin_ns) / 1e9
            why = _reason(log.stopped_errno or 0)
            faults.append(f"{RECORDING_STOPPED} after {after_s:.1f} s (process {log.pid}): {why}")
    return list(dict.fromkeys(faults))


def _reason(number: int) -> str:
    if number in _STOPS:
        return _STOPS[number]
    # A damaged log may hold any number.
    return "reason unknown" if number not in errno.errorcode else os.strerror(number)


def _of_probes(log: ProcessLog) -> Iterator[str]:
    for topic, verb in (
        (Topic.PROBE_FAILED, "failed"),
        (Topic.PROBE_UNAVAILABLE, "is off"),
    ):
        for note in log.texts_of(topic).values():
            if isinstance(note, dict):
                why = note.get("error") or note.get("reason")
                yield f"probe {note.get('probe')} {verb}: {why}"
