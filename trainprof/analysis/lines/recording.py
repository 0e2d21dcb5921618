"""Reads a run's line times and its source files, both of which may hold anything."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from typing import Final

from trainprof.analysis.lines.times import line_profile, source_name, timed_functions
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.process_name import process_names
from trainprof.analysis.run.ranks import rank_recordings
from trainprof.analysis.run.recording import Recording, faults_of, read_recording
from trainprof.analysis.summary.code import LineProfile, Source
from trainprof.analysis.summary.run_summary import RECORDING_STOPPED
from trainprof.record.files import read_run_file
from trainprof.record.run_directory import RunDirectory

# Far above any source file. A run has a copy of each file whose lines it timed.
MAX_SOURCE_BYTES: Final = 1 << 24
MAX_SOURCES_BYTES: Final = 1 << 26
_OF_LINES: Final = ("probe lines ", RECORDING_STOPPED)
# Other codecs may take any time, or not encode text.
_ENCODINGS: Final = ("utf-8", "utf-8-sig", "ascii", "iso-8859-1")
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_line_profile(directory: RunDirectory) -> LineProfile:
    """Returns the line times of a run, of all its ranks.

    Raises:
        OSError: If the directory cannot be read.
    """
    recordings = [] if directory.manifest.exists() else rank_recordings(directory)
    recordings = recordings or [read_recording(directory)]
    processes = [
        pair
        for recording in recordings
        for pair in zip(process_names(recording.logs), recording.logs, strict=True)
    ]
    cwd = recordings[0].manifest.get("cwd")
    lines = recordings[0].section("options").get("lines")
    only = lines.get("only") if isinstance(lines, dict) else None
    return line_profile(
        # The main process first: its order of functions is that of all.
        sorted(processes, key=lambda pair: pair[0].order),
        {
            name: source
            for recording in recordings
            for name, source in _saved_sources(recording).items()
        },
        only=only if isinstance(only, str) else None,
        cwd=cwd if isinstance(cwd, str) else None,
        damage=[fault for recording in recordings for fault in _faults(recording)],
    )


def decoded_lines(text: bytes) -> tuple[str, ...]:
    """Returns a source file's lines as Python reads them; other bytes are replaced."""
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
    """Returns what the recording lacks, and why lines were not timed."""
    times = recording.section("times")
    faults = faults_of(recording, integer(times.get("spawned_ns")) or 0)
    return [fault for fault in faults if fault in recording.damage or fault.startswith(_OF_LINES)]


def _saved_sources(recording: Recording) -> dict[str, Source]:
    """Returns the files in the run's sources/ that have timed functions, by name.

    Only plain names: nothing outside of sources/ is read.
    """
    files = {
        source_name(function) or "": function["file"]
        for log in recording.logs
        for function in timed_functions(log).values()
    }
    room = MAX_SOURCES_BYTES
    texts: dict[str, Source] = {}
    for name, file in files.items():
        if name in ("", "..") or name != os.path.basename(name):
            continue
        try:
            text = read_run_file(recording.directory.sources / name, MAX_SOURCE_BYTES)
        except (OSError, ValueError):
            continue
        room -= len(text)
        if room < 0:
            break
        texts[name] = Source(decoded_lines(text), _has_changed(file, text))
    return texts


def _has_changed(file: str, text: bytes) -> bool:
    """Whether the file has changed since; False if it is gone."""
    if not os.path.isabs(file):
        return False
    try:
        with os.fdopen(os.open(file, _FILE_FLAGS), "rb") as opened:
            is_plain = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            return is_plain and opened.read(len(text) + 1) != text
    except (OSError, ValueError):
        return False
