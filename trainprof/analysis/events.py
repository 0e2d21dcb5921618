"""A process's events as columns, and how they nest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.record.log_reader import EventLogFile, join_texts
from trainprof.record.schema import RECORD_BYTES, Kind, Topic

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

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
FIRST_EVENT_KIND: Final = int(Kind.LOADER_INIT)
_BLOCK_RECORDS: Final = 1 << 18
# Records of a log cut by a crash may be torn; none lasts longer than a month.
_MAX_DURATION_NS: Final = 31 * 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order of start (outer before inner), one row each.

    Attributes:
        kind, flags, site, value: As in record/schema.py, shape (n,).
        thread: Number of the thread that wrote the record.
        start, end: perf_counter ns; `end` > `start`.
    """

    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    thread: npt.NDArray[np.uint16]
    site: npt.NDArray[np.uint32]
    start: Int64
    end: Int64
    value: Int64

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, mask: Bool | Int64) -> Events:
        """Returns the rows of a mask or an index array."""
        return Events(*(getattr(self, name)[mask] for name in _COLUMNS))

    def is_kind(self, *kinds: Kind) -> Bool:
        """Returns the mask of rows of any of `kinds`."""
        if len(kinds) == 1:
            only: Bool = self.kind == int(kinds[0])
            return only
        wanted = np.zeros(256, dtype=np.bool_)
        wanted[[int(kind) for kind in kinds]] = True
        mask: Bool = wanted[self.kind]
        return mask


_COLUMNS: Final = ("kind", "flags", "thread", "site", "start", "end", "value")


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """What one process recorded.

    Attributes:
        header: Of its log file.
        events: Kinds from LOADER_INIT on.
        texts: Id to (topic, text).
        marks: Bookkeeping records (THREAD, TORCH_IMPORT, LIMIT, PROCESS_END), as (kind, site,
            start, end, value).
        main_thread: Number of the main thread in `events.thread`, or None.
        records: Written records, bookkeeping included.
        stopped_ns, stopped_errno: When and why recording stopped early.
    """

    header: dict[str, Any]
    events: Events
    texts: dict[int, tuple[Topic, str]]
    marks: list[tuple[Kind, int, int, int, int]]
    main_thread: int | None
    records: int
    stopped_ns: int | None
    stopped_errno: int | None

    @property
    def pid(self) -> int | None:
        pid = self.header.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def role(self) -> str:
        return str(self.header.get("role", "child"))

    def texts_of(self, topic: Topic) -> dict[int, Any]:
        """Returns id to decoded JSON (or plain text) of one topic; undecodable ones left out."""
        plain = topic in (Topic.CLASS, Topic.OPTIMIZER, Topic.EXCEPTION)
        found = {}
        for number, (its_topic, text) in self.texts.items():
            if its_topic is not topic:
                continue
            if plain:
                found[number] = text
                continue
            try:
                found[number] = json.loads(text)
            except (ValueError, RecursionError):
                continue
        return found


def load_process(log: EventLogFile) -> ProcessLog:
    """Turns a log file into columns, block by block; holes and torn records are left out."""
    total = len(log.body) // RECORD_BYTES
    blocks: list[list[npt.NDArray[Any]]] = []
    texts: list[bytes] = []
    marks: list[tuple[Kind, int, int, int, int]] = []
    main_thread: int | None = None
    records = 0
    for first in range(0, total, _BLOCK_RECORDS):
        piece = log.body[first * RECORD_BYTES : (first + _BLOCK_RECORDS) * RECORD_BYTES]
        rows = np.frombuffer(piece, dtype=RECORD_DTYPE)
        kind = rows["kind"]
        records += int(np.count_nonzero(kind))
        for index in np.flatnonzero((kind > 0) & (kind < FIRST_EVENT_KIND)).tolist():
            if kind[index] == Kind.TEXT:
                texts.append(bytes(piece[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]))
                continue
            row = rows[index]
            if kind[index] == Kind.THREAD and row["site"] == 1:
                main_thread = int(row["thread"])
            site, start, end, value = (int(row[c]) for c in ("site", "start", "end", "value"))
            marks.append((Kind(int(kind[index])), site, start, end, value))
        duration = rows["end"] - rows["start"]
        good = (
            (kind >= FIRST_EVENT_KIND)
            & (kind <= max(Kind))
            & (rows["start"] > 0)
            & (duration >= 0)
            & (duration < _MAX_DURATION_NS)
        )
        blocks.append([rows[name][good] for name in _COLUMNS])
        del rows, kind, duration, good
    return ProcessLog(
        header=log.header,
        events=_in_order(blocks),
        texts=join_texts(texts),
        marks=marks,
        main_thread=main_thread,
        records=records,
        stopped_ns=log.stopped_ns,
        stopped_errno=log.stopped_errno,
    )


def no_events() -> Events:
    """Returns a table without rows."""
    return Events(*(np.empty(0, dtype=RECORD_DTYPE[name]) for name in _COLUMNS))


def _in_order(blocks: list[list[npt.NDArray[Any]]]) -> Events:
    if not blocks:
        return no_events()
    columns = []
    for index in range(len(_COLUMNS)):
        columns.append(np.concatenate([block[index] for block in blocks]))
        for block in blocks:
            block[index] = np.empty(0)
    events = Events(*columns)
    # An event of no length would end before its own start where ends are counted.
    np.maximum(events.end, events.start + 1, out=events.end)
    # Records come in order of end: stable by start with later-written (outer) ones first.
    order = np.argsort(events.start[::-1], kind="stable")
    np.subtract(len(order) - 1, order, out=order)
    return events.where(order)


@dataclass(frozen=True, slots=True)
class Nesting:
    """Which event lies inside which, on one thread.

    Attributes:
        parent: Index of the innermost event around each, -1 at the top, shape (n,).
        levels: Index arrays, one per depth, outermost first.
        own_ns: Time of each event not covered by its children, int64 ns.
    """

    parent: npt.NDArray[np.int32]
    levels: list[Int64]
    own_ns: Int64

    def inside(self, kinds: Bool) -> Bool:
        """Returns which events have an ancestor among those of the mask `kinds`."""
        within = np.zeros(len(self.parent), dtype=bool)
        for level in self.levels[1:]:
            parents = self.parent[level]
            within[level] = within[parents] | kinds[parents]
        return within

    def top(self) -> Int64:
        """Returns the indices of the outermost events."""
        return self.levels[0] if self.levels else np.empty(0, dtype=np.int64)


def nest(events: Events) -> Nesting:
    """Finds the nesting of one thread's events; they must be in order of start."""
    n = len(events)
    parent = np.full(n, -1, dtype=np.int32)
    if n == 0:
        return Nesting(parent, [], np.empty(0, dtype=np.int64))
    ended = np.searchsorted(np.sort(events.end, kind="stable"), events.start, side="right")
    depth = (np.arange(n) - ended).astype(np.int16)
    np.maximum(depth, 0, out=depth)
    levels = [np.flatnonzero(depth == 0)]
    for wanted in range(1, int(depth.max()) + 1):
        level = np.flatnonzero(depth == wanted)
        above = levels[-1]
        place = np.searchsorted(above, level) - 1
        parent[level] = np.where(place >= 0, above[np.maximum(place, 0)], -1)
        levels.append(level)
    own = events.end - events.start
    for level in levels[1:]:
        parents = parent[level]
        length = (events.end[level] - events.start[level])[parents >= 0]
        taken = np.bincount(parents[parents >= 0], weights=length, minlength=n)
        own -= taken.astype(np.int64)
    np.maximum(own, 0, out=own)
    return Nesting(parent, levels, own)
