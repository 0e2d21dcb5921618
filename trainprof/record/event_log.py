"""The event log of one process: memory-mapped records that outlive any end of the process.

A record lands in the page cache as it is written, so nothing is lost to SIGKILL or `os._exit`, and
there is nothing to flush. Only the record in the making may be half there: its later fields are 0.
A process that ends in order gives back what it did not write.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import struct
import sys
import time
from typing import Final

from trainprof.record.ancestry import ancestors
from trainprof.record.event_writer import writer_of
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    RECORD,
    SCHEMA_VERSION,
    TEXT_PART_BYTES,
    TEXT_RECORD,
    Kind,
    Topic,
)

_MAX_ARGV0: Final = 1000


class EventLog:
    """Writes this process's records; opened at the first one, reopened in a forked child.

    No method raises but what a signal handler of the script's does meanwhile: an event that cannot
    be written is dropped, and why recording stopped is noted in the header.

    Attributes:
        emit: `emit(kind, start_ns, end_ns, site=0, value=0, flags=0)`, from any thread.
        emit_of: `emit_of(thread, kind, start_ns, end_ns, site, value, flags)`: of another
            thread, by its identity; does nothing where that one has recorded nothing itself.
        begin_end: The process comes to its end: what is recorded of it has room in a log that had
            stopped for its size.
        trim: Gives back what is allocated and not written. Later records begin another chunk.
        directory, role: As below.
        texts: Those that were defined, by id.
        preamble: What `remember` keeps.
        unwritten: In a forked child: ids of its parent's texts about loaders and stacks that it has
            not referred to yet. There is one for each, and a worker needs those of one loader.
    """

    def __init__(self, directory: str, *, role: str) -> None:
        """
        Args:
            directory: Absolute path of the run's events/; the script may change its directory.
            role: "script" for the process trainprof started, "child" for its descendants.
        """
        self.directory = directory
        self.role = role
        self._parent: int | None = None
        self.texts: dict[int, tuple[Topic, str]] = {}
        self._ids: dict[tuple[Topic, str], int] = {}
        self._next_id = itertools.count(1).__next__
        self.unwritten: set[int] = set()
        # Ids of all texts that a child is to write once it refers to them.
        self._by_reference: set[int] = set()
        self.preamble: list[tuple[int, int, int, int]] = []
        self.path: str | None = None
        self.is_open = False
        self.emit, self.emit_of, self._write_bytes, *acts = writer_of(self)
        self.begin_end, self.trim, self._start_over = acts

    @property
    def run_directory(self) -> str:
        return os.path.dirname(self.directory)

    def define(self, topic: Topic, text: str) -> int:
        """Returns the id under which later records name `text`; the same text, the same id."""
        known = self._ids.get((topic, text))
        if known is not None:
            self.refer(known)
            return known
        number = self._next_id()
        if topic is Topic.LOADER or topic is Topic.STACK:
            self._by_reference.add(number)
        self.texts[number] = (topic, text)
        # Another thread may have defined it meanwhile: the first one's id stands.
        number = self._ids.setdefault((topic, text), number)
        if self.is_open:
            self.write_text(topic, number, text)
        return number

    def refer(self, number: int) -> None:
        """To be called before records name a text that may have been defined before a fork."""
        if number in self.unwritten:
            self.unwritten.discard(number)  # first: who opens the log meanwhile writes it, too
            if self.is_open:
                topic, text = self.texts[number]
                self.write_text(topic, number, text)

    def without_text(self) -> int:
        """Returns an id that no text has, nor ever will: nothing is kept of it."""
        return self._next_id()

    def text_of(self, number: int) -> str | None:
        """Returns the text that was defined under an id, None if there is none."""
        known = self.texts.get(number)
        return known[1] if known is not None else None

    def note(self, topic: Topic, value: object) -> None:
        """Writes `value` as a JSON text that stands for itself."""
        self.define(topic, json.dumps(value, ensure_ascii=True, default=repr))

    def emit_line(self, function: int, line: int, total_ns: int, hits: int) -> None:
        """Writes what a line took so far: a LINE record has its line in place of the thread.

        Args:
            function: Id of a LINE_FUNCTION text.
            line: Its number, below 1 << 24.
            total_ns: Time of all hits together.
            hits: How often the line was reached.
        """
        now = time.perf_counter_ns()
        place = (line >> 16 & 0xFF, line & 0xFFFF, function)
        with contextlib.suppress(struct.error):
            self._write_bytes(RECORD.pack(Kind.LINE, *place, now, now + total_ns, hits))

    def remember(self, kind: Kind, start_ns: int, end_ns: int, value: int = 0) -> None:
        """Keeps a record until another one opens the log; nothing is written for it alone."""
        self.preamble.append((kind, start_ns, end_ns, value))

    def reopen_in_child(self) -> None:
        """After a fork: the child writes a log of its own, which can be read without its parent's.

        It begins with the texts known so far, but for those that it may never refer to.
        """
        self._parent = os.getppid()
        self.role = "child"
        self.preamble.clear()
        self.path = None
        self.is_open = False
        self.unwritten.update(self._by_reference)
        self._start_over()

    def write_text(self, topic: Topic, number: int, text: str) -> None:
        """Writes a text, secrets masked, in as many records as it takes, under its id."""
        data = _masked(text).encode("utf-8", "replace")[: TEXT_PART_BYTES * (LAST_PART - 1)]
        starts = range(0, max(len(data), 1), TEXT_PART_BYTES)
        for part, start in enumerate(starts):
            last = LAST_PART if part == len(starts) - 1 else 0
            piece = data[start : start + TEXT_PART_BYTES]
            self._write_bytes(TEXT_RECORD.pack(Kind.TEXT, topic, part | last, number, piece))

    def header(self) -> bytes:
        """Returns the page that a log of this process begins with, HEADER_BYTES long."""
        metadata = {
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "ancestors": ancestors(),
            "forked_from": self._parent,
            "role": self.role,
            "perf_ns": time.perf_counter_ns(),
            "time_ns": time.time_ns(),
            "python": sys.version.split()[0],
            "argv0": _argv0(),
            "rank": os.environ.get("RANK"),
        }
        text = json.dumps(metadata, ensure_ascii=True).encode("ascii")
        return (HEADER_PREFIX.pack(MAGIC, SCHEMA_VERSION, len(text)) + text).ljust(
            HEADER_BYTES, b"\0"
        )


def _argv0() -> str:
    from trainprof.record.masking import masked_text

    return masked_text(str(sys.argv[0]))[:_MAX_ARGV0] if getattr(sys, "argv", None) else ""


def _masked(text: str) -> str:
    from trainprof.record.masking import masked_json, masked_text

    masked = masked_text(text)
    if masked == text:
        return text
    try:
        return json.dumps(masked_json(json.loads(text)))
    except (ValueError, RecursionError):
        return masked
