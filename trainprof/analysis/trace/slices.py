"""Events of a thread as nested slices, with what was recorded of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.summary.trace import Slices, Texts
from trainprof.analysis.timeline.events import Events, nest, rows_of
from trainprof.analysis.timeline.ledger import KEY_OF_KIND, loads_samples
from trainprof.record.names import UNKNOWN_SITE
from trainprof.record.schema import (
    COLLATE_SHIFT,
    COLLECTIVES,
    Kind,
    SlowSampleFlag,
    SyncFlag,
    Topic,
    TransferFlag,
)

if TYPE_CHECKING:
    from trainprof.analysis.loading.fetches import Details
    from trainprof.analysis.run.metadata import Metadata, Sites
    from trainprof.analysis.timeline.events import Bool, Int64

# Kinds of details that nest in events, and one of our own: the end of a fetch.
DETAILS: Final = (Kind.SLOW_SAMPLE, Kind.PIN, Kind.COLLECTIVE, Kind.CACHE_EMPTIED)
_COLLATE: Final = 255
_NAMES: Final[dict[int, str]] = {
    **{int(kind): key for kind, key in KEY_OF_KIND.items()},
    Kind.SAMPLER: "sampler",
    Kind.FETCH: "fetch",
    Kind.PLACEMENT: "Module.to",
    Kind.CLOSURE: "closure",
    Kind.SLOW_SAMPLE: "sample",
    Kind.PIN: "pin memory",
    Kind.COLLECTIVE: "torch.distributed",
    Kind.CACHE_EMPTIED: "empty_cache",
    _COLLATE: "collate",
}
_CALLS: Final = {
    Kind.SCALER_STEP: "GradScaler.step",
    Kind.SCALER_UPDATE: "GradScaler.update",
    Kind.CLIP_GRADIENTS: "clip_grad",
    Kind.SCHEDULER_STEP: "scheduler.step",
    Kind.CHECKPOINT_SAVE: "save",
    Kind.CHECKPOINT_LOAD: "load",
}
_LOADER_CALLS: Final = (
    Kind.LOADER_INIT,
    Kind.LOADER_RESET,
    Kind.LOADER_NEXT,
    Kind.LOADER_ERROR,
    Kind.LOADER_END,
    Kind.LOADER_CLOSE,
)
_HAS_LINE: Final = (
    Kind.TRANSFER,
    Kind.SYNC,
    Kind.PLACEMENT,
    Kind.CHECKPOINT_SAVE,
    Kind.CHECKPOINT_LOAD,
    Kind.COMPILE,
    Kind.COLLECTIVE,
    Kind.CACHE_EMPTIED,
)
_WHICH_CALL: Final = ~np.uint8(
    SyncFlag.ON_CPU | SyncFlag.IN_CHAIN | SyncFlag.BY_TORCH | SyncFlag.BY_LIBRARY
)
_SYNCS: Final = {int(flag): flag.name.lower() for flag in SyncFlag}
_DIRECTIONS: Final = (TransferFlag.H2D, TransferFlag.D2H, TransferFlag.D2D)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Slices of events, cut where they would reach out of another slice, shape (n,).

    Attributes:
        events: Of one thread, in order.
        row: The event of each piece.
        depth: Number of events around it.
    """

    events: Events
    row: Int64
    start_ns: Int64
    end_ns: Int64
    depth: Int64


def pieces_of(events: Events, cuts: Int64 | None = None, until_ns: int | None = None) -> Pieces:
    """Returns the events of a thread as slices that nest in each other, and in those between cuts.

    Events that reach out of the one around them (a damaged log) are cut short.

    Args:
        events: In order of start, outer ones first.
        cuts: Ascending; events around one become two slices.
        until_ns: Slices from then on are left out.
    """
    nesting = nest(events)
    end, depth = events.end.copy(), np.zeros(len(events), dtype=np.int64)
    for number, level in enumerate(nesting.levels):
        depth[level] = number
        if number:
            end[level] = np.minimum(end[level], end[nesting.parent[level]])
    row = np.flatnonzero(end >= events.start)
    start, end = events.start[row], end[row]
    if cuts is not None and len(cuts):
        part, start, end = split(start, end, cuts)
        row = row[part]
    if until_ns is not None:
        is_before = start < until_ns
        row, start, end = row[is_before], start[is_before], end[is_before]
    return Pieces(events, row, start, end, depth[row])


def split(start: Int64, end: Int64, cuts: Int64) -> tuple[Int64, Int64, Int64]:
    """Cuts intervals at some times, which ascend.

    Returns:
        Of each piece the number of its interval, its start and its end.
    """
    first = np.searchsorted(cuts, start, side="right")
    inside = np.maximum(np.searchsorted(cuts, end, side="left") - first, 0)
    row = np.repeat(np.arange(len(start)), inside + 1)
    place = np.arange(len(row)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    cut = np.append(cuts, 0)
    at = first[row] + place
    begins = np.where(place == 0, start[row], cut[at - 1])
    return row, begins, np.where(place == inside[row], end[row], cut[np.minimum(at, len(cuts))])


def with_details(events: Events, details: Details) -> Events:
    """Returns one thread's events with the details that nest in them, and with collate calls."""
    chosen = details[np.isin(details["kind"], DETAILS)]
    fetch = events.where(events.is_kind(Kind.FETCH))
    collate_ns = fetch.value.astype(np.int64) >> COLLATE_SHIFT
    fetch, collate_ns = fetch.where(collate_ns > 0), collate_ns[collate_ns > 0]
    if len(chosen) == 0 and len(fetch) == 0:
        return events
    collate = replace(
        fetch,
        kind=np.full(len(fetch), _COLLATE, dtype=np.uint8),
        start=np.maximum(fetch.end - collate_ns, fetch.start),
    )
    columns = {
        name: np.concatenate(
            [
                getattr(events, name),
                chosen[name].astype(np.int64 if name == "value" else chosen[name].dtype),
                getattr(collate, name),
            ]
        )
        for name in ("kind", "flags", "thread", "site", "start", "end", "value")
    }
    # Of equal ones a fetch comes before its parts.
    rank = columns["kind"] == _COLLATE
    return Events(**columns).where(np.lexsort((rank, -columns["end"], columns["start"])))


@dataclass(frozen=True, slots=True)
class Words:
    """Turns numbers in a process's events into words.

    Attributes:
        loader_of: Returns the line of a loader, by its id.
        batches_of: Returns the numbers of batches, -1 where unknown, by the starts of fetches.
    """

    metadata: Metadata
    sites: Sites
    loader_of: Callable[[int], str]
    batches_of: Callable[[Int64], Int64]

    def displayed(self, events: Events) -> Events:
        """Leaves out reads of host tensors, which are no syncs, and graphs of torch.compile.

        A compiled graph inside another call is part of it.
        """
        is_shown = np.isin(events.kind, list(_NAMES))
        is_shown &= ~(events.is_kind(Kind.SYNC) & events.has(SyncFlag.ON_CPU))
        graphs = self.metadata.graph_classes()
        if graphs:
            is_graph = events.is_kind(Kind.FORWARD) & np.isin(events.site, graphs)
            is_shown &= ~(is_graph & (nest(events).parent >= 0))
        return events if is_shown.all() else events.where(is_shown)

    def slices(self, pieces: Pieces, origin_ns: int, depth: int) -> Iterator[Slices]:
        """Yields the pieces by kind; `depth` is that of outermost events."""
        events = pieces.events
        kind = events.kind.astype(np.int64)
        nesting = nest(events)
        is_backward = events.is_kind(Kind.BACKWARD)
        recomputed = events.is_kind(Kind.FORWARD, Kind.LOSS) & nesting.inside(is_backward)
        variants = (
            ("first_batch", events.is_kind(Kind.LOADER_NEXT) & (events.value <= 1)),
            ("recompute", recomputed),
            ("torch.load", loads_samples(events, nesting)),
            (
                "sample at place",
                events.is_kind(Kind.SLOW_SAMPLE) & ~events.has(SlowSampleFlag.IS_INDEX),
            ),
        )
        for number, (_, mask) in enumerate(variants, 1):
            kind[mask] += number << 8
        of_piece = kind[pieces.row]
        for value in np.unique(of_piece).tolist():
            which = np.flatnonzero(of_piece == value)
            rows = events.where(pieces.row[which])
            variant = value >> 8
            name = variants[variant - 1][0] if variant else _NAMES[value]
            is_sample = value & 255 == Kind.SLOW_SAMPLE
            start = pieces.start_ns[which]
            yield from _known(
                Slices(
                    name=name,
                    start_ns=start - origin_ns,
                    ns=pieces.end_ns[which] - start,
                    depth=pieces.depth[which] + depth,
                    number=rows.value.astype(np.int64) if is_sample else None,
                    args=self._args(value & 255, rows),
                )
            )

    def _args(self, kind: int, rows: Events) -> dict[str, Int64 | Texts]:
        """Returns what was recorded of events of one kind; -1 where it is unknown."""
        value, args = rows.value.astype(np.int64), dict[str, Any]()
        if kind in _HAS_LINE:
            args["line"] = _texts(rows.site, lambda n: self.sites[n])
        if kind in _CALLS:
            args["call"] = _texts(rows.kind, lambda n: _CALLS[Kind(n)])
        if kind in _LOADER_CALLS:
            args["loader"] = _texts(rows.site, self.loader_of)
        if kind == Kind.LOADER_NEXT:
            args["batch"] = np.where(value > 0, value, -1)
        elif kind == Kind.SAMPLER:
            args["samples"] = value
        elif kind == Kind.FETCH:
            args["batch"] = self.batches_of(rows.start)
            args["samples"] = value & ((1 << COLLATE_SHIFT) - 1)
        elif kind in (Kind.FORWARD, Kind.LOSS):
            args["module"] = _texts(rows.site, self._text_of(Topic.CLASS))
        elif kind in (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP):
            args["optimizer"] = _texts(rows.site, self._text_of(Topic.OPTIMIZER))
        elif kind == Kind.GC:
            args["generation"] = value
        elif kind == Kind.SYNC:
            args["call"] = _texts(rows.flags & _WHICH_CALL, lambda n: _SYNCS.get(n, UNKNOWN_SITE))
        elif kind == Kind.COLLECTIVE:
            args["call"] = _texts(
                rows.flags, lambda n: COLLECTIVES[n] if n < len(COLLECTIVES) else UNKNOWN_SITE
            )
        elif kind == Kind.TRANSFER:
            args["direction"] = _texts(rows.flags, _direction)
            args["bytes"] = value
        elif kind == Kind.CHECKPOINT_SAVE:
            args["bytes"] = np.where(value > 0, value, -1)
        return args

    def _text_of(self, topic: Topic) -> Callable[[int], str]:
        texts = self.metadata.texts.get(topic, {})
        return lambda number: str(texts.get(number, UNKNOWN_SITE))


def _direction(flags: int) -> str:
    words = (flag.name for flag in _DIRECTIONS if flags & flag and flag.name)
    return next(words, UNKNOWN_SITE).lower()


def _texts(numbers: Any, text_of: Callable[[int], str]) -> Texts:
    """Returns the text of each number, -1 where it is unknown."""
    ids, index = np.unique(numbers, return_inverse=True)
    texts = [text_of(number) for number in ids.tolist()]
    is_unknown = np.array([text == UNKNOWN_SITE for text in texts], dtype=bool)
    return Texts(texts=texts, index=np.where(is_unknown[index], -1, index))


def _known(slices: Slices) -> Iterator[Slices]:
    """Yields slices apart that differ in which of their arguments are known."""
    known = np.zeros(len(slices), dtype=np.int64)
    for bit, column in enumerate(slices.args.values()):
        values = column.index if isinstance(column, Texts) else column
        known |= (values >= 0).astype(np.int64) << bit
    for pattern in np.unique(known).tolist():
        mask: Bool = known == pattern
        args = {
            label: rows_of(column, mask) if isinstance(column, Texts) else column[mask]
            for bit, (label, column) in enumerate(slices.args.items())
            if pattern >> bit & 1
        }
        number = slices.number
        yield Slices(
            name=slices.name,
            start_ns=slices.start_ns[mask],
            ns=slices.ns[mask],
            depth=slices.depth[mask],
            number=None if number is None else number[mask],
            args=args,
        )
