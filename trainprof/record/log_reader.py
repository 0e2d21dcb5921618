"""Reads event logs as they are on disk: whole, still growing, or cut at any byte."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.errors import TrainprofError
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    RECORD_BYTES,
    SCHEMA_VERSION,
    STOPPED,
    STOPPED_OFFSET,
    TEXT_RECORD,
    Topic,
)

MAX_TEXT_BYTES: Final = 1 << 20


class UnreadableLog(TrainprofError):
    """The file is no event log, or one of a newer version."""

    slug, exit_code = "unreadable-log", 2


@dataclass(frozen=True, slots=True)
class EventLogFile:
    """A log as found.

    Attributes:
        header: {pid, ppid, role, forked_from, perf_ns, time_ns, ...}; {} where the header is cut.
        body: The records' bytes, a whole number of records; holes included.
        cut_bytes: Bytes at the end that are no whole record.
        stopped_ns: When recording stopped early (perf_counter_ns), or None.
        stopped_errno: Why.
    """

    path: Path
    header: dict[str, Any]
    body: memoryview
    cut_bytes: int
    stopped_ns: int | None
    stopped_errno: int | None


def log_paths(events: Path) -> list[Path]:
    """Returns the logs of a run, oldest name first; none when the directory is missing."""
    try:
        return sorted(p for p in events.iterdir() if p.suffix == EVENT_LOG_SUFFIX and p.is_file())
    except OSError:
        return []


def read_log(path: Path) -> EventLogFile:
    """Maps a log for reading.

    Raises:
        UnreadableLog: If it is empty, not a log, of a newer schema, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise UnreadableLog(f"Cannot open {path.name}: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
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
            hint="Read it with the trainprof that wrote it, or a newer one.",
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
        stopped_ns=stopped_ns or None,
        stopped_errno=stopped_errno or None,
    )


def _header(text: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def join_texts(records: Iterable[bytes]) -> dict[int, tuple[Topic, str]]:
    """Puts texts together from their TEXT records, in any order; incomplete ones are left out.

    Args:
        records: 32-byte records of kind TEXT.

    Returns:
        Text id to (topic, text).
    """
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
