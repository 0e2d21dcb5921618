"""Reads a run's line times, and the text of the files they were measured in; trusts neither."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from trainprof.analysis.facts import integer
from trainprof.analysis.faults import RECORDING_STOPPED, faults_of
from trainprof.analysis.line_times import (
    FunctionTimes,
    LineProfile,
    LineTime,
    Source,
    TimedProcess,
    line_profile,
    timed_functions,
)
from trainprof.analysis.lprof import LineStats, Place, Row, read_lprof
from trainprof.analysis.process_name import process_names
from trainprof.analysis.ranks import rank_recordings
from trainprof.analysis.recording import Recording, read_recording
from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_file

# No source file of a person comes near. A run has one for each file whose lines it timed.
MAX_SOURCE_BYTES: Final = 1 << 24
MAX_SOURCES_BYTES: Final = 1 << 26
_OF_LINES: Final = ("probe lines ", RECORDING_STOPPED)
ONLY: Final = ("workers", "main")
# A codec may take any time, or be no encoding of text at all.
_ENCODINGS: Final = frozenset(
    {"utf-8", "utf-8-sig", "ascii", "iso-8859-1", "iso-8859-15", "cp1251", "cp1252", "koi8-r"}
    | {"gbk", "gb18030", "big5", "shift_jis", "euc-jp", "euc-kr"}
)
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_line_profile(directory: RunDirectory) -> LineProfile:
    """Returns the line times of a run, of all its ranks.

    Raises:
        OSError: If the directory cannot be read.
    """
    recordings = [] if directory.manifest.exists() else rank_recordings(directory)
    recordings = recordings or [read_recording(directory)]
    processes = [process for one in recordings for process in _processes(one)]
    cwd = recordings[0].manifest.get("cwd")
    return line_profile(
        processes,
        cwd=cwd if isinstance(cwd, str) else None,
        damage=[fault for one in recordings for fault in _faults(one)],
    )


def lprof_profile(path: Path) -> LineProfile:
    """Returns the line times of a line_profiler's .lprof file.

    It does not hold the text of the lines: they are shown as they stand on disk now.

    Raises:
        ForeignLprof: If it is none.
        OSError: If it cannot be read.
    """
    stats, written_ns = read_lprof(path)
    sources: dict[str, Source | None] = {}
    room = MAX_SOURCES_BYTES
    for file, _, _ in stats.timings:
        if file not in sources:
            text, changed_ns = _text_on_disk(file, min(room, MAX_SOURCE_BYTES))
            room -= len(text or b"")
            sources[file] = _source_now(file, text, is_newer=changed_ns > written_ns)
    return LineProfile(stats.unit_s, tuple(_foreign_functions(stats, sources)))


def lprof_stats(profile: LineProfile) -> LineStats:
    """Returns a run's line times as line_profiler keeps them, all processes added up."""
    timings: dict[Place, dict[int, Row]] = {}
    for function in profile.functions:
        # A file that was another text in each process: line_profiler knows one of them.
        rows = timings.setdefault((function.file, function.line, function.name), {})
        for row in function.rows:
            _, hits, time = rows.get(row.line, (row.line, 0, 0))
            rows[row.line] = (row.line, hits + row.hits, time + row.time)
    ordered = {place: sorted(rows.values()) for place, rows in timings.items()}
    return LineStats(ordered, profile.unit_s)


def decoded_lines(text: bytes) -> tuple[str, ...]:
    """Returns a source file's lines as Python reads them; what is no text is replaced."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    except SyntaxError:
        encoding = "utf-8"
    encoding = encoding if encoding in _ENCODINGS else "utf-8"
    lines = io.TextIOWrapper(io.BytesIO(text), encoding, errors="replace").readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return tuple(lines)


def _faults(recording: Recording) -> list[str]:
    """Returns what is missing of the recording, and why lines were not timed."""
    times = recording.section("times")
    faults = faults_of(recording, integer(times.get("spawned_ns")) or 0)
    return [one for one in faults if one in recording.damage or one.startswith(_OF_LINES)]


def _processes(recording: Recording) -> list[TimedProcess]:
    sources = _saved_sources(recording)
    lines = recording.section("options").get("lines")
    only = lines.get("only") if isinstance(lines, dict) else None
    processes = [
        TimedProcess(log, name, sources, only if only in ONLY else None)
        for log, name in zip(recording.logs, process_names(recording.logs), strict=True)
    ]
    # The script's own first, whose order of functions is then that of all.
    return sorted(processes, key=lambda process: process.name.order)


def _saved_sources(recording: Recording) -> dict[str, Source]:
    """Returns the texts in the run's sources/ by their names there, as far as they are named."""
    room = MAX_SOURCES_BYTES
    found: dict[str, Source] = {}
    for name, file in _named_sources(recording):
        try:
            text = read_run_file(recording.directory.sources / name, MAX_SOURCE_BYTES)
        except (OSError, ValueError):
            continue
        room -= len(text)
        if room < 0:
            break
        found[name] = Source(decoded_lines(text), _has_changed(file, text))
    return found


def _named_sources(recording: Recording) -> Iterable[tuple[str, str]]:
    named: dict[str, str] = {}
    for log in recording.logs:
        for facts in timed_functions(log).values():
            name = facts.get("source")
            if isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".."):
                named.setdefault(name, facts["file"])
    return named.items()


def _has_changed(file: str, text: bytes) -> bool:
    """Tells whether the file holds another text now; one that is gone says nothing."""
    if not os.path.isabs(file):
        return False
    now, _ = _text_on_disk(file, len(text) + 1)
    return now is not None and now != text


def _text_on_disk(file: str, max_bytes: int) -> tuple[bytes | None, int]:
    """Returns up to `max_bytes` of a plain file, and when it was written, in ns since the epoch."""
    try:
        descriptor = os.open(file, _FILE_FLAGS)
    except (OSError, ValueError):
        return None, 0
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None, 0
        try:
            return opened.read(max_bytes), status.st_mtime_ns
        except OSError:
            return None, 0


def _source_now(file: str, text: bytes | None, *, is_newer: bool) -> Source | None:
    if text is not None:
        return Source(decoded_lines(text), is_newer)
    return Source(()) if _is_generated(file) else None


def _is_generated(file: str) -> bool:
    """Tells whether there never was a file, as line_profiler does: a notebook's cell."""
    cells = [os.path.join(tempfile.gettempdir(), name) for name in ("ipykernel_", "xpython_")]
    return file.startswith(("<generated", "<ipython-input-", *cells))


def _foreign_functions(
    stats: LineStats, sources: Mapping[str, Source | None]
) -> Iterable[FunctionTimes]:
    for (file, line, name), rows in stats.timings.items():
        times = tuple(LineTime(*row) for row in rows if row[1] > 0)
        unseen = None if times else "never called"
        yield FunctionTimes(file, line, name, "", sources[file], times, unseen=unseen)
