"""How often training gave the memory that torch keeps back to a device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.summary.memory import EmptiedCache
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import Attribution, within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind


def emptied_caches(
    details: npt.NDArray[np.void],
    timeline: Timeline,
    attribution: Attribution,
    sites: Sites,
    worked: Coverage,
) -> list[EmptiedCache]:
    """Returns the lines of the training loop that did, evaluation left out, dearest first.

    Args:
        details: Of the training process.
        timeline: Of its training thread, or a part of it.
        attribution: Of that thread's time.
        sites: Names of its places.
        worked: When the device did, at most.
    """
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
    found = []
    for name in dict.fromkeys(names[inside].tolist()):
        here = inside & (names == name)
        took_ns = (end - start)[here], idle[here], idle[here & is_between]
        found.append(EmptiedCache(name, int(here.sum()), *(int(ns.sum()) / 1e9 for ns in took_ns)))
    return sorted(found, key=lambda one: (-one.idle_s, -one.seconds))
