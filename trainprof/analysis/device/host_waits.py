"""What a device idles because the host had waited for it before.

A host that waits for a value while the device works could have gone on meanwhile, and given out
work. By so much it would be ahead of the device afterwards, and by two steps at most, for a device
takes no more ahead: idle time that follows, while the host is in Python or gives out work, would be
filled as far as that lead goes. What takes time in a loader takes as much of it; where the host
waits for the device all the same (a copy that blocks, an evaluation, a checkpoint, memory that is
given back, a gradient scaler, an optimizer's own reads) or for other ranks, nothing is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.device.busy import GIVES_WORK
from trainprof.analysis.device.overlap import Meanwhile, needed_syncs, waiting
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import LOADER_KINDS, within
from trainprof.record.schema import Kind

# Longer than any lead, ns.
_ALL: Final = np.iinfo(np.int64).max
_MOST_STEPS: Final = 2.0
# Details of calls in which the host waits.
_WAITS: Final = (Kind.CACHE_EMPTIED, Kind.COLLECTIVE, Kind.COMPILE)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Idle time that syncs of the training loop left behind them, evaluation left out.

    Attributes:
        index: Of each sync among the training thread's events, shape (n,).
        least_ns, most_ns: Idle until the next sync, and as far as the lead goes, surely and at most
            (while the host gives out work), ns, shape (n,).
    """

    index: Int64
    least_ns: Int64
    most_ns: Int64

    def seconds(self, which: Bool) -> list[float]:
        """Returns both of some syncs together, s."""
        return [float(ns[which].sum() / 1e9) for ns in (self.least_ns, self.most_ns)]


def held_back(meanwhile: Meanwhile, details: npt.NDArray[np.void], begin: int) -> HeldBack:
    """Works it out for each sync from a time on.

    Args:
        meanwhile: What the device did.
        details: Of the training process.
        begin: That time, ns.
    """
    timeline = meanwhile.timeline
    events, window = timeline.events, timeline.window
    begin = max(begin, window.loop_start, meanwhile.activity.first_ns)
    is_sync, is_copy = waiting(events)
    inside = (events.start >= begin) & (events.start < window.loop_end)
    inside &= ~within(timeline.segments, events.start)
    is_needed = needed_syncs(timeline)
    is_loader = events.is_kind(*LOADER_KINDS)
    stops = is_loader | is_copy | is_needed
    stops |= events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    is_sync &= inside & ~is_needed
    index = np.flatnonzero(is_sync | (stops & inside))
    rows = details[np.isin(details["kind"], _WAITS) & (details["thread"] == timeline.thread)]
    others = np.stack((rows["start"], rows["end"]), axis=1).astype(np.int64)
    others = np.concatenate((timeline.segments, others))
    # In order of their starts.
    start = np.concatenate((events.start[index], others[:, 0]))
    end = np.concatenate((events.end[index], others[:, 1]))
    waits = np.concatenate((is_sync[index], np.zeros(len(others), dtype=bool)))
    is_loader = np.concatenate((is_loader[index], np.zeros(len(others), dtype=bool)))
    index = np.concatenate((index, np.full(len(others), -1)))
    order = np.argsort(start, kind="stable")
    order = order[(end[order] > begin) & (start[order] < window.loop_end)]
    start, end, index, waits = start[order], end[order], index[order], waits[order]
    took_ns = np.where(is_loader[order], end - start, _ALL)
    if not waits.any():
        nothing = np.empty(0, dtype=np.int64)
        return HeldBack(nothing, nothing, nothing)
    gives = events.is_kind(*GIVES_WORK)
    spans = np.stack((events.start[gives], events.end[gives]), axis=1)
    most = Coverage.of(np.concatenate((meanwhile.most.spans(), spans)), (window.start, window.end))
    lasts_until = np.maximum(np.append(start[1:], window.loop_end), end)
    steps = max(int((timeline.steps.ends > begin).sum()), 1)
    most_ns = round(_MOST_STEPS * (window.loop_end - begin) / steps)
    found = [
        _filled(waits, worked[index] * waits, took_ns, _idle(covered, end, lasts_until), most_ns)
        for worked, covered in (
            (meanwhile.least_ns, most),
            (meanwhile.most_ns, meanwhile.least),
        )
    ]
    least, most_of_all = found
    return HeldBack(index[waits], least, np.maximum(least, most_of_all))


def _idle(worked: Coverage, starts: Int64, ends: Int64) -> Int64:
    left: Int64 = np.maximum(ends - starts - worked.inside_ns(starts, ends), 0)
    return left


def _filled(waits: Bool, led_ns: Int64, took_ns: Int64, idle_ns: Int64, most_ns: int) -> Int64:
    """Returns what of the idle time after each wait its lead, or what is left of one, would fill.

    Args:
        waits: Which are syncs, shape (n,); others take the lead away.
        led_ns: By how much each sync puts the host ahead.
        took_ns: What others take of the lead.
        idle_ns: Of the device after each until the next.
        most_ns: That a lead can be.
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
    found: Int64 = filled[waits]
    return found
