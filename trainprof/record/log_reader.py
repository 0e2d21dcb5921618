"""Reads event logs: complete, still growing, or cut at any byte."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.errors import TrainprofError
from trainprof.record.files import open_run_file
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    MOST_EMPTY_BYTES,
    RECORD_BYTES,
    SCHEMA_VERSION,
    STOPPED,
    STOPPED_OFFSET,
    TEXT_RECORD,
    Topic,
)

MAX_TEXT_BYTES: Final = 1 << 20
# Read of one log: 134 million records, about 12 GB in the analysis.
MAX_LOG_BYTES: Final = 1 << 32
_LARGE_BYTES: Final = 1 << 30
# 146 years after a boot.
_LATEST_NS: Final = 1 << 62
_MAX_EXTENTS: Final = 4096


class UnreadableLog(TrainprofError):
    """The file is not an event log, or one of a newer version."""

    slug, exit_code = "unreadable-log", 2


class EmptyLog(UnreadableLog):
    """An empty file: its process was killed while it created the log."""


@dataclass(frozen=True, slots=True)
class EventLogFile:
    """A log as it is on disk.

    Attributes:
        header: {pid, ppid, role, forked_from, perf_ns, time_ns, ...}; {} if the header is cut.
        body: Complete records, holes included, without empty pages at the end.
        cut_bytes: Bytes of an incomplete record at the end.
        stopped_ns, stopped_errno: When recording stopped early (perf_counter_ns), and why.
        unread_bytes: Bytes beyond MAX_LOG_BYTES.
    """

    path: Path
    header: dict[str, Any]
    body: memoryview
    cut_bytes: int
    stopped_ns: int | None
    stopped_errno: int | None
    unread_bytes: int = 0

    def kinds(self) -> set[int]:
        return set(bytes(self.body[::RECORD_BYTES]))


def log_paths(events: Path) -> list[Path]:
    """Returns the logs of a run, oldest name first; [] without the directory."""
    try:
        if events.is_symlink():  # its target is outside of the run
            return []
        return sorted(p for p in events.iterdir() if p.suffix == EVENT_LOG_SUFFIX and p.is_file())
    except OSError:
        return []


def read_log(path: Path) -> EventLogFile:
    """Maps a log for reading; UnreadableLog if it cannot be opened, is not a log, or is newer."""
    try:
        descriptor = open_run_file(path)
    except OSError as error:
        raise UnreadableLog(f"Cannot open {path.name}: {error.strerror}") from error
    try:
        written = _data_end(descriptor, os.fstat(descriptor).st_size)
        size = _stable_size(descriptor, min(written, MAX_LOG_BYTES))
        if size == 0:
            raise EmptyLog(f"{path.name} is empty")
        if size < HEADER_PREFIX.size:
            raise UnreadableLog(f"{path.name} is too short to be an event log")
        data = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise UnreadableLog(f"Cannot read {path.name}: {error}") from error
    finally:
        os.close(descriptor)
    magic, version, header_bytes = HEADER_PREFIX.unpack_from(data)
    if magic != MAGIC or version == 0:
        raise UnreadableLog(f"{path.name} is not an event log")
    if version > SCHEMA_VERSION:
        raise UnreadableLog(
            f"{path.name} has log version {version}; this trainprof reads up to {SCHEMA_VERSION}",
            hint="Read it with the trainprof version that wrote it, or a newer one.",
        )
    header_end = HEADER_PREFIX.size + min(header_bytes, STOPPED_OFFSET - HEADER_PREFIX.size)
    whole = max(0, (size - HEADER_BYTES) // RECORD_BYTES) * RECORD_BYTES
    stopped_ns, stopped_errno = (
        STOPPED.unpack_from(data, STOPPED_OFFSET)
        if size >= STOPPED_OFFSET + STOPPED.size
        else (0, 0)
    )
    return EventLogFile(
        path=path,
        header=_header(bytes(data[HEADER_PREFIX.size : header_end])),
        body=data[HEADER_BYTES : HEADER_BYTES + whole],
        cut_bytes=max(0, size - HEADER_BYTES - whole),
        stopped_ns=stopped_ns if 0 < stopped_ns < _LATEST_NS else None,
        stopped_errno=stopped_errno or None,
        unread_bytes=max(0, written - MAX_LOG_BYTES),
    )


def _data_end(descriptor: int, size: int) -> int:
    """Returns a log's size, without a hole at its end if it is very large."""
    end = 0
    if size > _LARGE_BYTES and hasattr(os, "SEEK_DATA"):
        try:
            for _ in range(_MAX_EXTENTS):
                end = os.lseek(descriptor, end, os.SEEK_DATA)
                end = os.lseek(descriptor, end, os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else size  # ENXIO: no data after `end`
    return size


def _stable_size(descriptor: int, size: int) -> int:
    """Returns a log's size without the empty pages of its last chunk.

    An ending process truncates them, and reading them in a mapping would then be SIGBUS.
    """
    begin = max(0, size - MOST_EMPTY_BYTES)
    data = os.pread(descriptor, size - begin, begin).rstrip(b"\0")
    end = begin + len(data)
    return min(size, end + -end % mmap.PAGESIZE)


def _header(text: bytes) -> dict[str, Any]:
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def join_texts(records: Iterable[bytes]) -> dict[int, tuple[Topic, str]]:
    """Returns (topic, text) by id from TEXT records in any order, without incomplete texts."""
    parts: dict[int, dict[int, bytes]] = {}
    topics: dict[int, int] = {}
    lengths: dict[int, int] = {}
    for record in records:
        _kind, topic, part, number, piece = TEXT_RECORD.unpack(record)
        parts.setdefault(number, {})[part & ~LAST_PART] = piece
        topics[number] = topic
        if part & LAST_PART:
            lengths[number] = (part & ~LAST_PART) + 1
    texts = {}
    known = {int(topic) for topic in Topic}
    for number, pieces in parts.items():
        if (
            lengths.get(number) != len(pieces)
            or max(pieces) >= len(pieces)
            or topics[number] not in known
        ):
            continue
        text = b"".join(pieces[part] for part in sorted(pieces)).rstrip(b"\0")
        if len(text) <= MAX_TEXT_BYTES:
            texts[number] = (Topic(topics[number]), text.decode("utf-8", "replace"))
    return texts
