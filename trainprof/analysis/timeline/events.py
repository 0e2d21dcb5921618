"""A process's events as columns, and how they nest."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import MAX_NUMBER, integer
from trainprof.record.log_reader import EventLogFile, join_texts
from trainprof.record.notes import MAX_PID as MAX_PID
from trainprof.record.schema import RECORD_BYTES, Kind, Topic

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
# Kind, site, start, end and value of a bookkeeping record.
Mark = tuple[Kind, int, int, int, int]
T = TypeVar("T")

RECORD_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("thread", "<u2"),
        ("site", "<u4"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("value", "<i8"),
    ]
)
# No event ends this much later than this number of events that were written after it.
_LATE_NS: Final = 1_000_000_000
_SUCCESSORS: Final = 3
_BLOCK_RECORDS: Final = 1 << 16
# By kind, for every value of a byte: a later version may write more kinds.
_IS_KNOWN: Final = np.isin(np.arange(256), [int(k) for k in Kind if k > 0])
_IS_DETAIL: Final = _IS_KNOWN & (np.arange(256) >= Kind.FETCH_CPU)
_IS_DETAIL[Kind.COMPILE] = False  # it nests
_IS_EVENT: Final = _IS_KNOWN & (np.arange(256) >= Kind.LOADER_INIT) & ~_IS_DETAIL
_IS_BOOKKEEPING: Final = _IS_KNOWN & ~_IS_EVENT & ~_IS_DETAIL
# Records of a log cut by a crash may be torn; none lasts longer than a month.
_MAX_DURATION_NS: Final = 31 * 86_400 * 10**9
# Nor are two records of a process a year apart.
MAX_APART_NS: Final = 366 * 86_400 * 10**9
_TORN_HEADER_EVENTS: Final = 4


_DTYPES: Final = {"Int32": np.int32, "Int64": np.int64, "Float64": np.float64, "Bool": np.bool_}


def rows_of(table: T, which: Bool | Int64 | slice) -> T:
    """Returns a dataclass with the chosen rows of each of its arrays; other fields stay."""
    plain: Any = table
    columns = {
        field.name: value[which]
        for field in fields(plain)
        if isinstance(value := getattr(plain, field.name), np.ndarray)
    }
    rows: T = replace(plain, **columns)
    return rows


def joined_tables(kind: type[T], tables: Sequence[T]) -> T:
    """Returns the rows of several tables of columns, one after the other; there may be no table."""
    plain: Any = kind
    columns = {
        field.name: np.concatenate(
            [np.empty(0, dtype=_DTYPES[str(field.type)]), *(getattr(t, field.name) for t in tables)]
        )
        for field in fields(plain)
    }
    return kind(**columns)


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order of start (outer before inner), shape (n,); columns as in record/schema.py."""

    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    thread: npt.NDArray[np.uint16]
    site: npt.NDArray[np.uint32]
    start: Int64
    end: Int64
    value: Int32 | Int64

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, mask: Bool | Int64) -> Events:
        """Returns the rows of a mask or an index array."""
        return rows_of(self, mask)

    def is_kind(self, *kinds: Kind) -> Bool:
        """Returns the mask of rows of any of `kinds`."""
        mask = np.zeros(len(self), dtype=np.bool_)
        for kind in kinds:  # much faster than looking each up in a table
            mask |= self.kind == int(kind)
        return mask

    def has(self, flag: int) -> Bool:
        """Returns the mask of rows with a flag."""
        # With an enum numpy would compute in int64.
        mask: Bool = self.flags & np.uint8(flag) > 0
        return mask


_COLUMNS: Final = ("kind", "flags", "thread", "site", "start", "end", "value")


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """What one process recorded.

    Attributes:
        details: Kinds from FETCH_CPU on, as written, of `RECORD_DTYPE`.
        texts: Id to (topic, text).
        marks: Bookkeeping records (THREAD, TORCH_IMPORT, LIMIT, PROCESS_END).
        main_thread: Number of the main thread in `events.thread`, or None.
        records: Written records, bookkeeping included.
        impossible: Number of events skipped for impossible times.
    """

    header: dict[str, Any]
    events: Events
    details: npt.NDArray[np.void]
    texts: dict[int, tuple[Topic, str]]
    marks: list[Mark]
    main_thread: int | None
    records: int
    stopped_ns: int | None
    stopped_errno: int | None
    impossible: int = 0

    @property
    def pid(self) -> int | None:
        pid = self.header.get("pid")
        return pid if isinstance(pid, int) and 0 < pid <= MAX_PID else None

    @property
    def role(self) -> str:
        return str(self.header.get("role", "child"))

    def texts_of(self, topic: Topic) -> dict[int, Any]:
        """Returns id to decoded JSON (or plain text) of one topic; undecodable ones left out."""
        own = {number: text for number, (its, text) in self.texts.items() if its is topic}
        if topic in (Topic.CLASS, Topic.OPTIMIZER, Topic.EXCEPTION):
            return own
        texts = {}
        for number, text in own.items():
            with suppress(ValueError, RecursionError):
                texts[number] = json.loads(text)
        return texts


def load_process(log: EventLogFile) -> ProcessLog:
    """Turns a log file into columns, block by block; holes and torn records are left out."""
    total = len(log.body) // RECORD_BYTES
    # Pages that are never written cost nothing.
    columns = {name: np.empty(total, dtype=RECORD_DTYPE[name]) for name in _COLUMNS}
    details: list[npt.NDArray[np.void]] = [np.empty(0, dtype=RECORD_DTYPE)]
    texts: list[bytes] = []
    marks: list[Mark] = []
    main_thread: int | None = None
    around_ns: int | None = None
    count = records = impossible = 0
    for first in range(0, total, _BLOCK_RECORDS):
        piece = log.body[first * RECORD_BYTES : (first + _BLOCK_RECORDS) * RECORD_BYTES]
        rows = np.frombuffer(piece, dtype=RECORD_DTYPE)
        # Copies: numpy is several times faster on contiguous memory.
        kind, start, end = (rows[name].copy() for name in ("kind", "start", "end"))
        records += int(np.count_nonzero(kind))
        is_whole, good = _whole(start, end), _IS_EVENT[kind]
        good &= is_whole
        if around_ns is None:
            around_ns = _around_ns(start[good], log.header)
        if around_ns is not None:
            is_near = np.abs(start - around_ns) < MAX_APART_NS
            impossible += int(np.count_nonzero(good & ~is_near))
            is_whole &= is_near
            good &= is_near
        for index in np.flatnonzero(_IS_BOOKKEEPING[kind]).tolist():
            if kind[index] == Kind.TEXT:
                texts.append(bytes(piece[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]))
                continue
            if kind[index] == Kind.THREAD and rows["site"][index] == 1:
                main_thread = int(rows["thread"][index])
            marks += _mark(rows[index], around_ns)
        details.append(rows[_IS_DETAIL[kind] & is_whole])
        chosen = np.flatnonzero(good)
        here = slice(count, count + len(chosen))
        for name, column in columns.items():
            np.take(rows[name], chosen, out=column[here], mode="clip")
        count = here.stop
        del rows
        _forget_pages(piece)
    is_wrong = _end_after_their_successors(columns["end"][:count])
    if is_wrong.any():
        impossible += int(np.count_nonzero(is_wrong))
        columns = {name: column[:count][~is_wrong] for name, column in columns.items()}
        count = len(columns["end"])
    return ProcessLog(
        header=log.header,
        events=_in_order(columns, count),
        details=np.concatenate(details),
        texts=join_texts(texts),
        marks=marks,
        main_thread=main_thread,
        records=records,
        stopped_ns=log.stopped_ns,
        stopped_errno=log.stopped_errno,
        impossible=impossible,
    )


def _whole(start: Int64, end: Int64) -> Bool:
    duration = end - start
    whole: Bool = (start > 0) & (start < MAX_NUMBER)
    whole &= (duration >= 0) & (duration < _MAX_DURATION_NS)
    return whole


def _mark(row: np.void, around_ns: int | None) -> list[Mark]:
    """Returns a bookkeeping record as a mark, without one if its times are impossible."""
    site, start, end, value = (int(row[c]) for c in ("site", "start", "end", "value"))
    latest_ns = MAX_NUMBER if around_ns is None else around_ns + MAX_APART_NS
    is_possible = 0 <= start < latest_ns and 0 <= end < MAX_NUMBER
    return [(Kind(int(row["kind"])), site, start, end, value)] if is_possible else []


def _around_ns(starts: Int64, header: dict[str, Any]) -> int | None:
    """Returns a time near a process's events: its header's unless most are far from it, or None."""
    opened_ns = integer(header.get("perf_ns"))
    middle_ns = int(np.median(starts)) if len(starts) else None
    if opened_ns is None or middle_ns is None or opened_ns < 0:
        return middle_ns
    is_far = abs(middle_ns - opened_ns) >= MAX_APART_NS
    return middle_ns if is_far and len(starts) >= _TORN_HEADER_EVENTS else opened_ns


def _end_after_their_successors(ends: Int64) -> Bool:
    """Returns which of the events, in order of writing, end well after several written later.

    Each is written when it ends: a bit of its time has flipped.
    """
    is_late = np.zeros(len(ends), dtype=bool)
    inner = max(len(ends) - _SUCCESSORS, 0)
    is_late[:inner] = True
    for step in range(1, _SUCCESSORS + 1):
        is_late[:inner] &= ends[:inner] - ends[step : inner + step] > _LATE_NS
    return is_late


def _forget_pages(read: memoryview) -> None:
    """Releases the mapped pages of a log, which count as ours, all: blocks are not page-aligned."""
    if isinstance(read.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        read.obj.madvise(mmap.MADV_DONTNEED)


def no_events() -> Events:
    return Events(*(np.empty(0, dtype=RECORD_DTYPE[name]) for name in _COLUMNS))


def _in_order(columns: dict[str, npt.NDArray[Any]], count: int) -> Events:
    """Puts the first `count` rows in order of start, one column at a time: to save memory."""
    # Records come in order of end, those of one thread: the start is nearly in order, too.
    order = np.argsort(columns["start"][:count], kind="stable")
    _reverse_equals(columns["start"][:count], order)
    for name in _COLUMNS:
        columns[name] = columns[name][:count][order]
    values, limits = columns["value"], np.iinfo(np.int32)
    if count and limits.min <= values.min() and values.max() <= limits.max:
        columns["value"] = columns["value"].astype(np.int32)
    return Events(**columns)


def _reverse_equals(starts: Int64, order: npt.NDArray[np.intp]) -> None:
    """Of events that start at one time, puts those written later, the outer ones, first."""
    in_order = starts[order]
    equal = np.flatnonzero(in_order[1:] == in_order[:-1]) + 1
    if len(equal) == 0:
        return
    first = equal[np.diff(equal, prepend=-1) > 1] - 1
    last = equal[np.diff(equal, append=len(order) + 1) > 1]
    length = last - first + 1
    place = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    order[np.repeat(first, length) + place] = order[np.repeat(last, length) - place]


@dataclass(frozen=True, slots=True)
class Nesting:
    """Which event lies inside which, on one thread.

    Attributes:
        parent: Index of the innermost event around each, -1 at the top, shape (n,).
        levels: Index arrays, one per depth, outermost first.
        own_ns: Time of each event not covered by its children. Events that reach out of the one
            around them (a damaged log) are cut, so that no time counts twice.
    """

    parent: Int32
    levels: list[Int32]
    own_ns: Int64

    def inside(self, kinds: Bool) -> Bool:
        """Returns which events have an ancestor among those of the mask `kinds`."""
        within = np.zeros(len(self.parent), dtype=bool)
        for level in self.levels[1:]:
            parents = self.parent[level]
            within[level] = within[parents] | kinds[parents]
        return within

    def nearest(self, kinds: Bool) -> Int32:
        """Returns the innermost event around each of those in the mask `kinds`, -1 for none."""
        ancestors = np.full(len(self.parent), -1, dtype=np.int32)
        for level in self.levels[1:]:
            parents = self.parent[level]
            ancestors[level] = np.where(kinds[parents], parents, ancestors[parents])
        return ancestors

    def innermost(self, events: Events, times: Int64, *, besides: Bool | None = None) -> Int64:
        """Returns the innermost event around each time but those of a mask, -1 for none."""
        around = np.searchsorted(events.start, times, side="right").astype(np.int64) - 1
        while len(events):
            is_over = (around >= 0) & (events.end[np.maximum(around, 0)] <= times)
            if besides is not None:
                is_over |= (around >= 0) & besides[np.maximum(around, 0)]
            if not is_over.any():
                break
            around[is_over] = self.parent[around[is_over]]
        return around

    def top(self) -> Int32:
        """Returns the indices of the outermost events."""
        return self.levels[0] if self.levels else np.empty(0, dtype=np.int32)


def nest(events: Events) -> Nesting:
    """Finds the nesting of one thread's events; they must be in order of start."""
    n = len(events)
    parent = np.full(n, -1, dtype=np.int32)
    if n == 0:
        return Nesting(parent, [], np.empty(0, dtype=np.int64))
    depth = _depths(events)
    levels = [np.flatnonzero(depth == wanted).astype(np.int32) for wanted in range(depth.max() + 1)]
    del depth
    own = events.end - events.start
    # Where an event ends, or the one around it, if that is earlier.
    end = events.end
    for above, level in pairwise(levels):
        parents = above[np.searchsorted(above, level) - 1]
        parent[level] = parents
        last, first = end[parents], events.start[level]
        if (end[level] > last).any():
            end = end.copy() if end is events.end else end
            end[level] = np.clip(end[level], np.minimum(first, last), last)
            own[level] = np.maximum(end[level] - first, 0)
        np.subtract.at(own, parents, own[level])
    return Nesting(parent, levels, own)


def _depths(events: Events) -> Int32:
    """Counts the events around each: those that began before it and have not ended."""
    ended = np.searchsorted(np.sort(events.end), events.start, side="right")
    depth = np.arange(len(events), dtype=np.int32)
    depth -= ended.astype(np.int32)
    has_no_length = events.end == events.start
    if has_no_length.any():
        # Such an event counts as ended at its own start, and at that of its equals before it.
        last = np.searchsorted(events.start, events.start, side="right")
        counted = np.concatenate([[0], np.cumsum(has_no_length)])
        depth += (counted[last] - counted[:-1]).astype(np.int32)
    return depth
