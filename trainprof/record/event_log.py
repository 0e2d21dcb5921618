"""The event log of one process: memory-mapped records that survive however the process ends.

A record is in the page cache once written, so SIGKILL and `os._exit` lose nothing. Only the record
being written may be cut: its later fields are 0.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import mmap
import os
import struct
import sys
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from trainprof.record.hot import compiled
from trainprof.record.log_chunk import (
    END_BYTES,
    FIRST_CHUNK_BYTES,
    Chunk,
    check_room,
    next_chunk_bytes,
)
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    NATIVE_RECORD,
    RECORD,
    RECORD_BYTES,
    SCHEMA_VERSION,
    STOPPED,
    STOPPED_OFFSET,
    TEXT_PART_BYTES,
    TEXT_RECORD,
    Kind,
    Stop,
    Topic,
)
from trainprof.record.signal_handlers import comes_from_signal_handler, traceback_of

_MAX_ARGV0: Final = 1000


class EventLog:
    """Writes this process's records; opened at the first one, reopened in a forked child.

    No method raises, except what a signal handler of the script raises during it. An event that
    cannot be written is dropped, and the header records why recording stopped.

    Attributes:
        emit: `emit(kind, start_ns, end_ns, site=0, value=0, flags=0)`, from any thread.
        emit_of: `emit_of(thread, kind, start_ns, end_ns, site, value, flags)`, for another thread
            by its identity; does nothing if that thread has recorded nothing itself.
        begin_end: The process is ending: its last records fit even in a log that reached its limit.
        trim: Frees allocated space that is not written. Later records begin another chunk.
        directory: Absolute, because the script may change its working directory.
        role: "script" for the process trainprof started, "child" for its descendants.
        texts: Defined texts by id.
        unwritten: In a forked child: ids of the parent's texts about loaders and stacks that the
            child has not used yet. A worker needs those of one loader only.
    """

    def __init__(self, directory: str, *, role: str) -> None:
        self.directory = directory
        self.role = role
        self._parent: int | None = None
        self.texts: dict[int, tuple[Topic, str]] = {}
        self._ids: dict[tuple[Topic, str], int] = {}
        self._next_id = itertools.count(1).__next__
        self.unwritten: set[int] = set()
        # Ids of texts that a forked child writes when it first uses them.
        self._by_reference: set[int] = set()
        self.preamble: list[tuple[int, int, int, int]] = []
        self.path: str | None = None
        self.is_open = False
        self._event_ns = round(event_cost_ns())
        self.emit, self.emit_of, self._write, self._write_bytes, *acts = writer_of(self)
        self.begin_end, self.trim, self._reset = acts

    @property
    def run_directory(self) -> str:
        return os.path.dirname(self.directory)

    def define(self, topic: Topic, text: str) -> int:
        """Returns the id by which records name `text`; equal texts have one id."""
        known = self._ids.get((topic, text))
        if known is not None:
            self.refer(known)
            return known
        number = self._next_id()
        if topic is Topic.LOADER or topic is Topic.STACK:
            self._by_reference.add(number)
        self.texts[number] = (topic, text)
        # Another thread may have defined it concurrently: the first id counts.
        number = self._ids.setdefault((topic, text), number)
        if self.is_open:
            self.write_text(topic, number, text)
        return number

    def refer(self, number: int) -> None:
        """Writes a text that the parent defined; call it before records name the text."""
        if number in self.unwritten:
            self.unwritten.discard(number)  # first: another thread may be opening the log
            if self.is_open:
                topic, text = self.texts[number]
                self.write_text(topic, number, text)

    def new_id(self) -> int:
        """Returns an unused id for something without a text."""
        return self._next_id()

    def text_of(self, number: int) -> str | None:
        """Returns the text of an id, None for an id without one."""
        known = self.texts.get(number)
        return known[1] if known is not None else None

    def note(self, topic: Topic, value: object) -> None:
        """Writes `value` as a JSON text that no record refers to."""
        self.define(topic, json.dumps(value, ensure_ascii=True, default=repr))

    def emit_line(self, function: int, line: int, total_ns: int, hits: int) -> None:
        """Writes a line's total time and hits so far; `line` < 1 << 24, `function` is a text id."""
        now = time.perf_counter_ns()
        place = (line >> 16 & 0xFF, line & 0xFFFF, function)
        with contextlib.suppress(struct.error):
            self._write(Kind.LINE, *place, now, now + total_ns, hits)

    def remember(self, kind: Kind, start_ns: int, end_ns: int, value: int = 0) -> None:
        """Keeps a record until another one opens the log."""
        self.preamble.append((kind, start_ns, end_ns, value))

    def reopen_in_child(self) -> None:
        """Begins a new log in a forked child, readable without its parent's."""
        self._parent = os.getppid()
        self.role = "child"
        self.preamble.clear()
        self.path = None
        self.is_open = False
        self.unwritten.update(self._by_reference)
        self._reset()

    def write_text(self, topic: Topic, number: int, text: str) -> None:
        """Writes a text under its id, secrets masked, split over TEXT records."""
        data = _masked(text).encode("utf-8", "replace")[: TEXT_PART_BYTES * (LAST_PART - 1)]
        starts = range(0, max(len(data), 1), TEXT_PART_BYTES)
        for part, start in enumerate(starts):
            last = LAST_PART if part == len(starts) - 1 else 0
            piece = data[start : start + TEXT_PART_BYTES]
            self._write_bytes(TEXT_RECORD.pack(Kind.TEXT, topic, part | last, number, piece))

    def header(self) -> bytes:
        """Returns the first HEADER_BYTES of this process's log."""
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
            "in_c": type(self.emit) is not FunctionType,
            "event_ns": self._event_ns,
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


MAX_ANCESTORS: Final = 16


def ancestors() -> list[int]:
    """Returns the pids of the parent, its parent and so on; only the parent's without /proc."""
    pids = [os.getppid()]
    while pids[-1] > 1 and len(pids) < MAX_ANCESTORS:
        parent = _parent_of(pids[-1])
        if parent is None:
            break
        pids.append(parent)
    return pids


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The process name before the fields may contain blanks and parentheses.
            return int(stat.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


_MAX_THREADS: Final = 0xFFFF
# After recording stopped, events go here: emitting costs the same as before.
_UNRECORDED_BYTES: Final = 1 << 16

# Of event_cost_ns: 0.1 to 0.4 ms in all.
_COST_ROUNDS: Final = 8
_COST_EVENTS: Final = 50

# Raised for a full buffer, an unknown thread, a value out of range, a lock held at a fork. The
# script's signal handlers may raise the same types, wherever Python code runs.
_REFUSED: Final = (struct.error, LookupError, ValueError, TypeError, RuntimeError)


def _is_raised_deeper(error: BaseException) -> bool:
    """Returns whether a frame below the catching one raised it; our code there calls only C."""
    traceback = traceback_of(error)
    return traceback is not None and traceback.tb_next is not None


Emit = Callable[..., None]
_Act = Callable[[], None]
_Room = mmap.mmap | bytearray
# write(kind, flags, thread, site, start, end, value)
_Write = Callable[..., None]


def writer_of(
    log: EventLog,
) -> tuple[Emit, Emit, _Write, Callable[[bytes], None], _Act, _Act, _Act]:
    """Returns the functions that write to one log.

    They are a plain tuple: this module may be imported while Ctrl-C ends Python, and a NamedTuple's
    exec() then loses the exit status.
    """
    threads: dict[int, int] = {}
    next_thread = itertools.count().__next__
    chunk: Chunk | None = None
    unreleased: list[Chunk] = []
    size = 0
    # Why recording stopped: an errno, a Stop, or -1.
    stopped = 0
    # At the process's end: file size up to which it writes without checking the disk.
    is_ending, end_of_end = False, 0
    has_first_thread = False
    growing = threading.Lock()
    # Records emitted while the log grows: waiting could deadlock a signal handler.
    late: deque[bytes] = deque()

    def emit_slowly(
        kind: int, start_ns: int, end_ns: int, site: int = 0, value: int = 0, flags: int = 0
    ) -> None:
        try:
            if stopped:
                use_buffer(take()[0], 0)  # later ones take the fast path until the buffer is full
                return
            thread = threads.get(get_ident())
            if thread is None:
                thread = enter_thread()
            write_bytes(RECORD.pack(kind, flags, thread, site, start_ns, end_ns, value))
        except _REFUSED as error:
            if comes_from_signal_handler(error):
                raise

    def emit_of(
        thread: int, kind: int, start: int, end: int, site: int, value: int, flags: int
    ) -> None:
        try:
            number = threads.get(thread)
            if number is not None and not stopped:
                write(kind, flags, number, site, start, end, value)
        except _REFUSED as error:
            if comes_from_signal_handler(error):
                raise

    def write(*fields: int) -> None:
        if not put(*fields):
            write_bytes(RECORD.pack(*fields))

    def enter_thread() -> int:
        nonlocal has_first_thread
        number = threads[get_ident()] = min(next_thread(), _MAX_THREADS)
        is_main = threading.main_thread().ident == get_ident()
        native = threading.get_native_id()
        now = time.perf_counter_ns()
        try:
            write_bytes(RECORD.pack(Kind.THREAD, 0, number, int(is_main), now, now, native))
        except BaseException:  # from a signal handler: the next record enters the thread again
            del threads[get_ident()]
            raise
        if not has_first_thread:
            has_first_thread = True
            enter_first(get_ident(), number)
        return number

    def write_bytes(record: bytes) -> None:
        while not stopped:
            room, at = take()
            if at + RECORD_BYTES <= len(room):
                room[at : at + RECORD_BYTES] = record
                return
            if not growing.acquire(blocking=False):
                late.append(record)
                if not growing.locked():
                    write_late()
                return
            try:
                if take()[0] is room:
                    grow()
            finally:
                growing.release()
            write_late()

    def write_late() -> None:
        while late:
            try:
                record = late.popleft()
            except IndexError:  # another thread took it
                return
            write_bytes(record)

    def grow() -> None:
        nonlocal chunk, size
        header = None
        try:
            if size == 0:
                name = f"{os.getpid()}-{time.time_ns()}{EVENT_LOG_SUFFIX}"
                log.path = os.path.join(log.directory, name)
                header = log.header()
            assert log.path is not None
            if size >= end_of_end:
                check_room(log.directory, size)
            fresh = Chunk(log.path, size, bytes_of_next())
            first = 0
            if header is not None:
                fresh.buffer[:HEADER_BYTES] = header
                first = HEADER_BYTES
            clock = (time.perf_counter_ns(), time.time_ns())
            RECORD.pack_into(fresh.buffer, first, Kind.CLOCK, 0, 0, 0, *clock, 0)
        except Exception as error:
            if comes_from_signal_handler(error):
                if size == 0 and log.path is not None:  # the next record opens a new one
                    with contextlib.suppress(OSError):
                        os.unlink(log.path)
                raise
            stop(error, header)
            return
        release()
        chunk, size = fresh, size + fresh.size
        use_buffer(fresh.buffer, first + RECORD_BYTES)
        if header is not None:
            write_known_texts()

    def bytes_of_next() -> int:
        if is_ending:
            return FIRST_CHUNK_BYTES
        return next_chunk_bytes(size, is_script=log.role == "script")

    def stop(error: Exception, header: bytes | None) -> None:
        nonlocal stopped
        reason = getattr(error, "errno", None) or 0
        stopped = reason or -1
        late.clear()
        release()
        use_buffer(bytearray(_UNRECORDED_BYTES), 0)
        # An existing file is not ours to write into. The first stop's reason is kept.
        if not isinstance(error, FileExistsError) and not end_of_end:
            _note_stop(log.path, header, reason)

    def release() -> None:
        nonlocal chunk
        if chunk is not None and not chunk.may_be_released():
            unreleased.append(chunk)
        chunk = None

    def begin_end() -> None:
        nonlocal stopped, is_ending, end_of_end
        is_ending = True
        if stopped in (Stop.LARGE, Stop.LITTLE_ROOM):
            end_of_end = size + END_BYTES
            use_buffer(bytearray(), 0)
            stopped = 0

    def trim() -> None:
        nonlocal size
        if chunk is None or stopped or not growing.acquire(blocking=False):
            return
        try:
            # Threads that still hold the buffer write before this offset.
            used = min(use_buffer(bytearray(), 0), chunk.size)
            if log.path is not None and chunk.is_cut(log.path, used):
                size = chunk.offset + chunk.size
            release()
        finally:
            growing.release()
        write_late()

    def write_known_texts() -> None:
        log.is_open = True  # first: define() writes later texts itself
        for number, (topic, text) in list(log.texts.items()):
            if number not in log.unwritten:
                log.write_text(topic, number, text)
        for kind, start, end, value in log.preamble:
            emit_slowly(kind, start, end, 0, value, 0)

    def reset() -> None:
        nonlocal size, stopped, is_ending, end_of_end, growing, next_thread, has_first_thread
        release()
        size, stopped, is_ending, end_of_end = 0, 0, False, 0
        growing = threading.Lock()
        next_thread = itertools.count().__next__
        threads.clear()
        has_first_thread = False
        enter_first(0, 0)
        late.clear()
        use_buffer(bytearray(), 0)

    emit, put, take, use_buffer, enter_first = _cursor(threads, emit_slowly)
    return emit, emit_of, write, write_bytes, begin_end, trim, reset


def event_cost_ns() -> float:
    """Returns what two clock reads and a record take here when nothing evicts them from caches."""
    thread, now = get_ident(), time.perf_counter_ns
    emit, _, _, use_buffer, enter_first = _cursor({thread: 0}, lambda *_: None)
    enter_first(thread, 0)
    use_buffer(bytearray(RECORD_BYTES * _COST_ROUNDS * _COST_EVENTS), 0)
    kind, least = int(Kind.CLOCK), math.inf
    for _ in range(_COST_ROUNDS):
        began = now()
        for _ in range(_COST_EVENTS):
            emit(kind, now(), now())
        least = min(least, now() - began)
    return least / _COST_EVENTS


def _cursor(threads: dict[int, int], emit_slowly: Emit) -> tuple[Any, ...]:
    """Returns the methods of a Recorder, in C if that is built."""
    hot = compiled()
    if hot is None:
        return _python_cursor(threads, emit_slowly)
    recorder = hot.Recorder(threads, emit_slowly)
    return recorder, recorder.write, recorder.take, recorder.use, recorder.enter_first


def _python_cursor(threads: dict[int, int], emit_slowly: Emit) -> tuple[Any, ...]:
    """Returns the methods of the Recorder in C; a closure is Python's fastest state.

    take() returns the chunk being filled and the offset of the next record, use() where records
    ended in the chunk before.
    """
    pack_into = NATIVE_RECORD.pack_into
    # Nearly all records are of one thread: a comparison takes half the time of a dict lookup.
    first_thread = first_number = 0
    # Read and set in one line: Python switches threads and runs signal handlers only at calls and
    # between lines.
    buffer: _Room = bytearray()
    offset = 0

    def emit(
        kind: int, start_ns: int, end_ns: int, site: int = 0, value: int = 0, flags: int = 0
    ) -> None:
        nonlocal offset
        room, at, offset = buffer, offset, offset + RECORD_BYTES
        try:
            thread = get_ident()
            number = first_number if thread == first_thread else threads[thread]
            pack_into(room, at, kind, flags, number, site, start_ns, end_ns, value)
            return
        except _REFUSED as error:
            if _is_raised_deeper(error):
                raise
        emit_slowly(kind, start_ns, end_ns, site, value, flags)

    def put(*_: int) -> bool:
        return False

    def take() -> tuple[_Room, int]:
        nonlocal offset
        room, at, offset = buffer, offset, offset + RECORD_BYTES
        return room, at

    def use(room: _Room, first: int) -> int:
        nonlocal buffer, offset
        before, used, buffer, offset = buffer, offset, room, first
        del before  # freed after both are set
        return used

    def enter_first(thread: int, number: int) -> None:
        nonlocal first_thread, first_number
        first_number, first_thread = number, thread

    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return emit, put, take, use, enter_first
    placing = threading.Lock()

    def locked(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with placing:
                return act(*args)

        return call

    return emit_slowly, put, locked(take), locked(use), enter_first


def _note_stop(path: str | None, header: bytes | None, reason: int) -> None:
    """Writes into the header page when and why recording stopped, and `header` if given."""
    if path is None:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        try:
            if header is not None:
                os.pwrite(descriptor, header, 0)
            stop = STOPPED.pack(time.perf_counter_ns(), reason)
            os.pwrite(descriptor, stop, STOPPED_OFFSET)
        finally:
            os.close(descriptor)
    except (OSError, struct.error):
        return
