"""Where the host waits for a device, by line: copies, synchronizing calls, emptied caches.

A host that waits for a value while the device is busy could have launched kernels ahead. This lead,
two steps at most, would fill later idle time while the host is in Python or launches kernels. Time
in loaders reduces the lead. It ends where the host waits for the device anyway (a blocking copy,
evaluation, a checkpoint, empty_cache(), a gradient scaler, an optimizer's reads) or for other
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from trainprof.analysis.device.activity import LAUNCHES, Overlap, needed_syncs, waiting
from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.summary.device import (
    EmptiedCache,
    FoundSync,
    FoundSyncs,
    Placement,
    SyncPoint,
    Transfer,
)
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import LOADER_KINDS, Attribution, within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import FoundSyncFlag, Kind, SyncFlag, TransferFlag

# Longer than any lead, ns.
_ALL: Final = np.iinfo(np.int64).max
_MOST_STEPS: Final = 2.0
# Details of calls in which the host waits.
_WAITS: Final = (Kind.CACHE_EMPTIED, Kind.COLLECTIVE)
_WHICH_CALL: Final = ~np.uint8(
    SyncFlag.ON_CPU | SyncFlag.IN_CHAIN | SyncFlag.BY_TORCH | SyncFlag.BY_LIBRARY
)
_Row = TypeVar("_Row", bound=Transfer | SyncPoint)
# A damaged log may hold any number.
_MOST_COUNTED: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Idle time after syncs of the training loop because of them, without evaluation.

    Attributes:
        index: Of each sync among the training thread's events, shape (n,).
        least_ns, most_ns: Idle until the next sync, and within the lead, shape (n,).
    """

    index: Int64
    least_ns: Int64
    most_ns: Int64

    def seconds(self, which: Bool) -> list[float]:
        """Returns both of some syncs together, s."""
        return [float(ns[which].sum() / 1e9) for ns in (self.least_ns, self.most_ns)]


def held_back(overlap: Overlap, details: npt.NDArray[np.void], begin: int) -> HeldBack:
    """Returns it for each sync from `begin` on, ns."""
    timeline = overlap.timeline
    events, window = timeline.events, timeline.window
    begin = max(begin, window.loop_start, overlap.activity.first_ns)
    is_sync, is_copy = waiting(events)
    inside = (events.start >= begin) & (events.start < window.loop_end)
    inside &= ~within(timeline.segments, events.start)
    is_needed = needed_syncs(timeline)
    is_loader = events.is_kind(*LOADER_KINDS)
    stops = is_loader | is_copy | is_needed
    stops |= events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD, Kind.COMPILE)
    is_sync &= inside & ~is_needed
    index = np.flatnonzero(is_sync | (stops & inside))
    rows = details[np.isin(details["kind"], _WAITS) & (details["thread"] == timeline.thread)]
    others = np.stack((rows["start"], rows["end"]), axis=1).astype(np.int64)
    others = np.concatenate((timeline.segments, others))
    # In order of their starts.
    start = np.concatenate((events.start[index], others[:, 0]))
    end = np.concatenate((events.end[index], others[:, 1]))
    no = np.zeros(len(others), dtype=bool)
    waits = np.concatenate((is_sync[index], no))
    is_loader = np.concatenate((is_loader[index], no))
    index = np.concatenate((index, np.full(len(others), -1)))
    order = np.argsort(start, kind="stable")
    order = order[(end[order] > begin) & (start[order] < window.loop_end)]
    start, end, index, waits = start[order], end[order], index[order], waits[order]
    took_ns = np.where(is_loader[order], end - start, _ALL)
    if not waits.any():
        nothing = np.empty(0, dtype=np.int64)
        return HeldBack(nothing, nothing, nothing)
    launching = events.is_kind(*LAUNCHES)
    spans = np.stack((events.start[launching], events.end[launching]), axis=1)
    most = Coverage.of(np.concatenate((overlap.most.spans(), spans)), (window.start, window.end))
    lasts_until = np.maximum(np.append(start[1:], window.loop_end), end)
    steps = max(int((timeline.steps.ends > begin).sum()), 1)
    most_ns = round(_MOST_STEPS * (window.loop_end - begin) / steps)
    least, most_of_all = (
        _filled(waits, worked[index] * waits, took_ns, _idle(covered, end, lasts_until), most_ns)
        for worked, covered in ((overlap.least_ns, most), (overlap.most_ns, overlap.least))
    )
    return HeldBack(index[waits], least, np.maximum(least, most_of_all))


def _idle(worked: Coverage, starts: Int64, ends: Int64) -> Int64:
    left: Int64 = np.maximum(ends - starts - worked.inside_ns(starts, ends), 0)
    return left


def _filled(waits: Bool, led_ns: Int64, took_ns: Int64, idle_ns: Int64, most_ns: int) -> Int64:
    """Returns the idle time after each wait that its lead, or the rest of one, would fill.

    Args:
        waits: Which are syncs, shape (n,), with a lead of `led_ns`; others reduce it by `took_ns`.
        idle_ns: Of the device after each until the next.
        most_ns: The largest lead.
    """
    filled, lead, last = np.zeros(len(waits), dtype=np.int64), 0, 0
    rows = zip(waits.tolist(), led_ns.tolist(), took_ns.tolist(), idle_ns.tolist(), strict=True)
    for number, (is_sync, led, took, idle) in enumerate(rows):
        if is_sync:
            last, lead = number, min(lead + led, most_ns)
        else:
            lead = max(lead - took, 0)
        filled[last] += min(lead, idle)
        lead -= min(lead, idle)
    waiting_calls: Int64 = filled[waits]
    return waiting_calls


def transfers(events: Events, sites: Sites, overlap: Overlap | None) -> list[Transfer]:
    """Returns the copies of each line and direction, slowest first: by exposed time if known."""
    copies = np.flatnonzero(events.is_kind(Kind.TRANSFER))
    copied = events.where(copies)
    timed = None if overlap is None else _Timed(overlap)
    lines = []
    for flag in (TransferFlag.H2D, TransferFlag.D2H, TransferFlag.D2D):
        is_direction = copied.has(flag)
        for site in np.unique(copied.site[is_direction]).tolist():
            is_one = is_direction & (copied.site == site)
            index, rows = copies[is_one], copied.where(is_one)
            line = Transfer(
                site=sites[site],
                direction=flag.name.lower(),
                count=len(rows),
                bytes=int(rows.value.sum()),
                host_s=float((rows.end - rows.start).sum() / 1e9),
                device_s=None,
                gb_per_s=None,
                pinned_share=float(rows.has(TransferFlag.PINNED).mean()),
                non_blocking_share=float(rows.has(TransferFlag.NON_BLOCKING).mean()),
                by_library_share=float(rows.has(TransferFlag.BY_LIBRARY).mean()),
                is_made_there=bool(rows.has(TransferFlag.CREATED_IN_LINE).any()),
            )
            lines.append(line if timed is None else timed.added_to(line, index, rows))
    return sorted(
        lines, key=lambda line: -(line.host_s if line.exposed_s is None else line.exposed_s)
    )


class _Timed:
    """The device's figures of copies, by event; columns of shape (n_events,)."""

    def __init__(self, overlap: Overlap) -> None:
        copies, count = overlap.activity.copies, len(overlap.timeline.events)
        self._device_ns = np.zeros(count, dtype=np.int64)
        self._is_beside, self._known = np.zeros((2, count), dtype=bool)
        self._device_ns[copies.event] = copies.spans[:, 1] - copies.spans[:, 0]
        self._is_beside[copies.event], self._known[copies.event] = copies.is_beside, True
        self._exposed_ns = overlap.exposed_ns() + self._device_ns
        self._in_loop = _in_loop(overlap.timeline)

    def added_to(self, line: Transfer, index: Int64, rows: Events) -> Transfer:
        known, device_ns = self._known[index], self._device_ns[index]
        timed = device_ns > 0
        in_loop = index[self._in_loop[index]]
        took_s = float(device_ns.sum() / 1e9)
        moved = int(rows.value[timed].sum())
        return replace(
            line,
            device_s=took_s if timed.any() else None,
            gb_per_s=moved / took_s / 1e9 if took_s > 0 else None,
            timed=int(timed.sum()),
            exposed_s=float(self._exposed_ns[index].sum() / 1e9),
            exposed_in_training_s=float(self._exposed_ns[in_loop].sum() / 1e9),
            in_training=len(in_loop),
            beside_share=float(self._is_beside[index][known].mean()) if known.any() else None,
        )


def _in_loop(timeline: Timeline) -> Bool:
    """Returns which of the training thread's events begin in the training phase."""
    start, window = timeline.events.start, timeline.window
    inside: Bool = (start >= window.loop_start) & (start < window.loop_end)
    return inside


def costliest_in_training(
    rows: Sequence[_Row], cost_s: Callable[[_Row], float] | None = None
) -> tuple[_Row | None, bool]:
    """Returns the line that cost training most, in idle time by default, and whether others did."""
    costs = [(cost_s or idle_during_s)(row) for row in rows]
    if not costs:
        return None, False
    return rows[costs.index(max(costs))], sum(cost > 0 for cost in costs) > 1


def idle_during_s(row: Transfer | SyncPoint) -> float:
    """Returns for how long the device surely idled in the calls of a line, in training."""
    inside_s = row.exposed_s if row.exposed_in_training_s is None else row.exposed_in_training_s
    return inside_s or 0.0


def idle_for_s(point: SyncPoint) -> float:
    """Returns `idle_during_s` without needed syncs, and with the idle time held back after it."""
    after_s = point.held_back_s[0] if point.held_back_s else 0.0
    return max(idle_during_s(point) - point.needed_s, 0.0) + after_s


def placements(events: Events, sites: Sites) -> list[Placement]:
    """Returns the lines that move models or convert them, longest first."""
    mine = events.where(events.is_kind(Kind.PLACEMENT))
    lines = []
    for site in np.unique(mine.site).tolist():
        rows = mine.where(mine.site == site)
        spent_s = float((rows.end - rows.start).sum() / 1e9)
        lines.append(Placement(sites[site], len(rows), spent_s))
    return sorted(lines, key=lambda line: -line.host_s)


def sync_points(
    events: Events,
    sites: Sites,
    overlap: Overlap | None,
    counted_until_s: Mapping[int, float] | None = None,
    held: HeldBack | None = None,
) -> list[SyncPoint]:
    """Returns the sync points of each line and kind, slowest first: by exposed time if known.

    Args:
        counted_until_s: By SyncFlag, when counting reads of CPU tensors stopped.
        held: Idle time of the device after them, or None.
    """
    until = counted_until_s or {}
    is_sync = events.is_kind(Kind.SYNC)
    mine = events.where(is_sync)
    exposed = None if overlap is None else overlap.exposed_ns()[is_sync]
    trains, is_needed = np.zeros((2, len(mine)), dtype=bool)
    if overlap is not None:
        timeline = overlap.timeline
        is_needed = needed_syncs(timeline)[is_sync]
        trains = (_in_loop(timeline) & ~within(timeline.segments, events.start))[is_sync]
    on_cpu = mine.has(SyncFlag.ON_CPU)
    names = {int(flag): flag.name.lower() for flag in SyncFlag}
    points = []
    keys = _call_keys(mine)
    keys_of_held = None if held is None else _call_keys(events.where(held.index))
    for key in np.unique(keys).tolist():
        rows = keys == key
        waits = rows & ~on_cpu
        point = SyncPoint(
            site=sites[key >> 8],
            kind=names.get(key & 0xFF, "unknown"),
            count=int(rows.sum()),
            on_cpu=int((rows & on_cpu).sum()),
            seconds=float((mine.end - mine.start)[waits].sum() / 1e9) if waits.any() else None,
            exposed_s=None,
            counted_until_s=until.get(key & 0xFF) if (rows & on_cpu).any() else None,
        )
        if exposed is not None and waits.any():
            point = replace(
                point,
                exposed_s=float(exposed[waits].sum() / 1e9),
                exposed_in_training_s=float(exposed[waits & trains].sum() / 1e9),
                in_training=int((waits & trains).sum()),
                library_share=float(mine.has(SyncFlag.BY_LIBRARY)[waits].mean()),
                needed_s=float(exposed[waits & trains & is_needed].sum() / 1e9),
                held_back_s=None if held is None else held.seconds(keys_of_held == key),
            )
        points.append(point)
    return sorted(points, key=SyncPoint.costliest_first)


def _call_keys(syncs: Events) -> Int64:
    """Returns a number for the line and kind of each sync."""
    keys: Int64 = syncs.site.astype(np.int64) << 8 | (syncs.flags & _WHICH_CALL)
    return keys


def emptied_caches(
    details: npt.NDArray[np.void],
    timeline: Timeline,
    attribution: Attribution,
    sites: Sites,
    worked: Coverage,
) -> list[EmptiedCache]:
    """Returns the training loop's lines that call empty_cache(), slowest first."""
    rows = details[(details["kind"] == Kind.CACHE_EMPTIED) & (details["thread"] == timeline.thread)]
    rows = rows[np.argsort(rows["start"], kind="stable")]
    start, end = rows["start"].astype(np.int64), rows["end"].astype(np.int64)
    idle = np.maximum(end - start - worked.inside_ns(start, end), 0)
    window = timeline.window
    inside = (start >= window.loop_start) & (end <= window.loop_end)
    inside &= ~within(timeline.segments, start)
    tops = timeline.events.start[attribution.top], timeline.events.end[attribution.top]
    is_between = ~within(np.stack(tops, axis=1), start)
    names = np.array([sites[number] for number in rows["site"].tolist()], dtype=object)
    lines = []
    for name in dict.fromkeys(names[inside].tolist()):
        here = inside & (names == name)
        took_ns = (end - start)[here], idle[here], idle[here & is_between]
        lines.append(EmptiedCache(name, int(here.sum()), *(int(ns.sum()) / 1e9 for ns in took_ns)))
    return sorted(lines, key=lambda line: (-line.idle_s, -line.seconds))


def found_syncs_of(details: npt.NDArray[np.void], sites: Sites) -> FoundSyncs | None:
    """Returns the calls by line, None if torch's sync debug mode was never on."""
    windows = details[details["kind"] == Kind.SYNC_WINDOW]
    if len(windows) == 0:
        return None
    window = windows[int(windows["end"].argmax())]
    rows = details[details["kind"] == Kind.FOUND_SYNC]
    is_known = (rows["flags"] & FoundSyncFlag.KNOWN) > 0
    numbers, counts = np.unique(rows["site"][~is_known], return_counts=True)
    by_line: dict[str, int] = {}
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        by_line[sites[number]] = by_line.get(sites[number], 0) + count
    return FoundSyncs(
        first_step=int(window["site"]),
        steps=min(max(int(window["value"]), 0), _MOST_COUNTED),
        calls=[FoundSync(*item) for item in sorted(by_line.items(), key=lambda item: -item[1])],
        known_calls=int(is_known.sum()),
    )
