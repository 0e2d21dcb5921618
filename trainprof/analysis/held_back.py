"""What a device idles because the host had waited for it before.

A host that waits for a value while the device works could have gone on meanwhile, and given out
work. By so much it would be ahead of the device afterwards: idle time that follows, while the host
is in Python or gives out work, would be filled as far as that lead goes. Where the host waits again
for something else, a copy or a loader's batch, nothing is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.coverage import Coverage
from trainprof.analysis.device_time import GIVES_WORK
from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.ledger import LOADER_KINDS, within
from trainprof.analysis.meanwhile import Meanwhile, waiting
from trainprof.record.schema import Kind

# Longer than any lead, ns.
_ALL: Final = np.iinfo(np.int64).max


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


def held_back(meanwhile: Meanwhile, begin: int) -> HeldBack:
    """Works it out for each sync from a time on, ns."""
    timeline = meanwhile.timeline
    events, window = timeline.events, timeline.window
    begin = max(begin, window.loop_start, meanwhile.activity.first_ns)
    is_sync, is_copy = waiting(events)
    inside = (events.start >= begin) & (events.start < window.loop_end)
    is_sync &= inside & ~within(timeline.segments, events.start)
    stops = inside & (is_copy | events.is_kind(*LOADER_KINDS, Kind.CHECKPOINT_SAVE))
    stops &= ~within(timeline.segments, events.start)
    # In order of their starts, as events are; an evaluation stops it too.
    start = np.concatenate((events.start[is_sync | stops], timeline.segments[:, 0]))
    end = np.concatenate((events.end[is_sync | stops], timeline.segments[:, 1]))
    index = np.flatnonzero(is_sync | stops)
    index = np.concatenate((index, np.full(len(timeline.segments), -1)))
    order = np.argsort(start, kind="stable")
    start, end, index = start[order], end[order], index[order]
    kept = (end > begin) & (start < window.loop_end)
    start, end, index = start[kept], end[kept], index[kept]
    waits = (index >= 0) & is_sync[np.maximum(index, 0)]
    # A copy that blocks waits for all that was given out before it.
    took_ns = np.where((index >= 0) & is_copy[np.maximum(index, 0)], _ALL, end - start)
    if not waits.any():
        nothing = np.empty(0, dtype=np.int64)
        return HeldBack(nothing, nothing, nothing)
    gives = events.is_kind(*GIVES_WORK)
    spans = np.stack((events.start[gives], events.end[gives]), axis=1)
    most = Coverage.of(np.concatenate((meanwhile.most.spans(), spans)), (window.start, window.end))
    lasts_until = np.maximum(np.append(start[1:], window.loop_end), end)
    found = [
        _filled(waits, worked[index] * waits, took_ns, _idle(covered, end, lasts_until))
        for worked, covered in (
            (meanwhile.least_ns, most),
            (meanwhile.most_ns, meanwhile.least),
        )
    ]
    least_ns, most_ns = found
    return HeldBack(index[waits], least_ns, np.maximum(least_ns, most_ns))


def _idle(worked: Coverage, starts: Int64, ends: Int64) -> Int64:
    left: Int64 = np.maximum(ends - starts - worked.inside_ns(starts, ends), 0)
    return left


def _filled(waits: Bool, led_ns: Int64, took_ns: Int64, idle_ns: Int64) -> Int64:
    """Returns what of the idle time after each wait its lead, or what is left of one, would fill.

    Args:
        waits: Which are syncs, shape (n,); others take the lead away.
        led_ns: By how much each sync puts the host ahead.
        took_ns: What others take of the lead.
        idle_ns: Of the device after each until the next.
    """
    filled, lead, last = np.zeros(len(waits), dtype=np.int64), 0, 0
    rows = zip(waits.tolist(), led_ns.tolist(), took_ns.tolist(), idle_ns.tolist(), strict=True)
    for number, (is_sync, led, took, idle) in enumerate(rows):
        if is_sync:
            last, lead = number, lead + led
        else:
            lead = max(lead - took, 0)
        filled[last] += min(lead, idle)
        lead -= min(lead, idle)
    found: Int64 = filled[waits]
    return found
