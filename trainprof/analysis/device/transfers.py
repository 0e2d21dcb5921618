"""Copies between devices and sync points, by the line that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from trainprof.analysis.device.host_waits import HeldBack
from trainprof.analysis.device.overlap import Meanwhile, needed_syncs
from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.summary.device import Placement, SyncPoint, Transfer
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind, SyncFlag, TransferFlag

_WHICH_CALL: Final = ~np.uint8(
    SyncFlag.ON_CPU | SyncFlag.IN_CHAIN | SyncFlag.BY_TORCH | SyncFlag.BY_LIBRARY
)
_Row = TypeVar("_Row", bound=Transfer | SyncPoint)


def transfers(events: Events, sites: Sites, meanwhile: Meanwhile | None) -> list[Transfer]:
    """Returns the copies of each line and direction, dearest first: in exposed time if it is known.

    Args:
        events: Of the training thread.
        sites: Names of lines.
        meanwhile: What the device did, where that is known.
    """
    copies = np.flatnonzero(events.is_kind(Kind.TRANSFER))
    copied = events.where(copies)
    told = None if meanwhile is None else _Told.of(meanwhile)
    found = []
    for flag in (TransferFlag.H2D, TransferFlag.D2H, TransferFlag.D2D):
        of_direction = (copied.flags & flag) > 0
        for site in np.unique(copied.site[of_direction]).tolist():
            is_one = of_direction & (copied.site == site)
            index, rows = copies[is_one], copied.where(is_one)
            one = Transfer(
                site=sites[site],
                direction=flag.name.lower(),
                count=len(rows),
                bytes=int(rows.value.sum()),
                host_s=float((rows.end - rows.start).sum() / 1e9),
                device_s=None,
                gb_per_s=None,
                pinned_share=float(((rows.flags & TransferFlag.PINNED) > 0).mean()),
                non_blocking_share=float(((rows.flags & TransferFlag.NON_BLOCKING) > 0).mean()),
                by_library_share=float(((rows.flags & TransferFlag.BY_LIBRARY) > 0).mean()),
                is_made_there=bool((rows.flags & TransferFlag.MADE_THERE).any()),
            )
            found.append(one if told is None else told.added_to(one, index, rows))
    return sorted(found, key=lambda one: -(one.host_s if one.exposed_s is None else one.exposed_s))


class _Told:
    """What the device tells of copies, by event; columns of shape (n_events,)."""

    def __init__(
        self, device_ns: Int64, exposed_ns: Int64, is_beside: Bool, known: Bool, in_loop: Bool
    ) -> None:
        self._device_ns, self._exposed_ns = device_ns, exposed_ns
        self._is_beside, self._known, self._in_loop = is_beside, known, in_loop

    @classmethod
    def of(cls, meanwhile: Meanwhile) -> _Told:
        copies, count = meanwhile.activity.copies, len(meanwhile.timeline.events)
        device_ns = np.zeros(count, dtype=np.int64)
        is_beside, known = np.zeros((2, count), dtype=bool)
        device_ns[copies.event] = copies.spans[:, 1] - copies.spans[:, 0]
        is_beside[copies.event], known[copies.event] = copies.is_beside, True
        exposed_ns = meanwhile.exposed_ns() + device_ns
        return cls(device_ns, exposed_ns, is_beside, known, _in_loop(meanwhile.timeline))

    def added_to(self, one: Transfer, index: Int64, rows: Events) -> Transfer:
        known, device_ns = self._known[index], self._device_ns[index]
        timed = device_ns > 0
        in_loop = index[self._in_loop[index]]
        took_s = float(device_ns.sum() / 1e9)
        moved = int(rows.value[timed].sum())
        return replace(
            one,
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


def dearest_in_training(
    rows: Sequence[_Row], cost_s: Callable[[_Row], float] | None = None
) -> tuple[_Row | None, bool]:
    """Returns who cost training most, as far as the device felt it, and whether others did too.

    Args:
        rows: Of lines.
        cost_s: What one cost; the device idling meanwhile unless told otherwise.
    """
    costs = [(cost_s or idle_meanwhile_s)(row) for row in rows]
    if not costs:
        return None, False
    return rows[costs.index(max(costs))], sum(cost > 0 for cost in costs) > 1


def idle_meanwhile_s(row: Transfer | SyncPoint) -> float:
    """Returns for how long the device surely idled in the calls of a line, in training.

    Of older summaries, which do not tell what lies in training, the whole run counts.
    """
    inside_s = row.exposed_s if row.exposed_in_training_s is None else row.exposed_in_training_s
    return inside_s or 0.0


def idle_for_s(point: SyncPoint) -> float:
    """Returns the same with what it idles after them for them, without what has to be."""
    after_s = point.held_back_s[0] if point.held_back_s else 0.0
    return max(idle_meanwhile_s(point) - point.needed_s, 0.0) + after_s


def placements(events: Events, sites: Sites) -> list[Placement]:
    """Returns the lines that move models or convert them, longest first."""
    mine = events.where(events.is_kind(Kind.PLACEMENT))
    found = []
    for site in np.unique(mine.site).tolist():
        rows = mine.where(mine.site == site)
        spent_s = float((rows.end - rows.start).sum() / 1e9)
        found.append(Placement(sites[site], len(rows), spent_s))
    return sorted(found, key=lambda one: -one.host_s)


def sync_points(
    events: Events,
    sites: Sites,
    meanwhile: Meanwhile | None,
    counted_until_s: Mapping[int, float] | None = None,
    held: HeldBack | None = None,
) -> list[SyncPoint]:
    """Returns the sync points of each line and kind, dearest first: in exposed time if known.

    Args:
        events: Of the training thread.
        sites: Names of lines.
        meanwhile: What the device did, where that is known.
        counted_until_s: By SyncFlag, when reads of host tensors were counted no longer.
        held: What the device idles after them, where that is known.
    """
    until = counted_until_s or {}
    is_sync = events.is_kind(Kind.SYNC)
    mine = events.where(is_sync)
    exposed = None if meanwhile is None else meanwhile.exposed_ns()[is_sync]
    trains, is_needed = np.zeros((2, len(mine)), dtype=bool)
    if meanwhile is not None:
        timeline = meanwhile.timeline
        is_needed = needed_syncs(timeline)[is_sync]
        trains = (_in_loop(timeline) & ~within(timeline.segments, events.start))[is_sync]
    on_cpu = (mine.flags & SyncFlag.ON_CPU) > 0
    which = mine.flags & _WHICH_CALL
    names = {int(flag): flag.name.lower() for flag in SyncFlag}
    found = []
    of_call = events.site.astype(np.int64) << 8 | (events.flags & _WHICH_CALL)
    keys = np.unique(of_call[is_sync])
    for key in keys.tolist():
        rows = (mine.site == key >> 8) & (which == key & 0xFF)
        waits = rows & ~on_cpu
        one = SyncPoint(
            site=sites[key >> 8],
            kind=names.get(key & 0xFF, "unknown"),
            count=int(rows.sum()),
            on_cpu=int((rows & on_cpu).sum()),
            seconds=float((mine.end - mine.start)[waits].sum() / 1e9) if waits.any() else None,
            exposed_s=None,
            counted_until_s=until.get(key & 0xFF) if (rows & on_cpu).any() else None,
        )
        if exposed is not None and waits.any():
            one = replace(
                one,
                exposed_s=float(exposed[waits].sum() / 1e9),
                exposed_in_training_s=float(exposed[waits & trains].sum() / 1e9),
                in_training=int((waits & trains).sum()),
                library_share=float(((mine.flags & SyncFlag.BY_LIBRARY) > 0)[waits].mean()),
                needed_s=float(exposed[waits & trains & is_needed].sum() / 1e9),
                held_back_s=None if held is None else held.seconds(of_call[held.index] == key),
            )
        found.append(one)
    return sorted(found, key=SyncPoint.dearest_first)
