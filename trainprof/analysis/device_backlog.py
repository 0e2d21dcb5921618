"""How long a device works on what a slow host gives it, by looks at work that had piled up.

Where the device keeps up with the host, the time between two marks holds the gaps between kernels.
A few times in a run the device was made to wait (probes/device_backlog.py). A stretch between two
marks whose second was put before the first was reached was given out as a whole by then: the device
did it without a gap. So long works a device on that part of a step whenever it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.coverage import Coverage
from trainprof.analysis.device_time import GIVES_WORK, MARK_LATENCY_NS, WAITS, Activity
from trainprof.analysis.events import Bool, Events, Int64
from trainprof.analysis.facts import Facts
from trainprof.analysis.student import t_quantile
from trainprof.analysis.timeline import Timeline
from trainprof.record.schema import DeviceMarkFlag, Kind

# Looks at a part of a step before they are to speak for the others.
MIN_LOOKS: Final = 3
# They speak for so many times the part of the run that they spread over: they become rarer, and
# what training does may change.
_REACH: Final = 3
# The mean of all is within this of the looks' mean, in so many of a hundred cases.
_CONFIDENCE: Final = 0.975
# Clocks and caches are not quite the same behind a pause.
_MARGIN: Final = 0.05
# A device takes so long from one mark to the next, with nothing in between.
_MARK_NS: Final = 2_000
# Where more of the others had piled up by themselves, those left over may be lighter than looks.
_MOST_QUEUED: Final = 0.1
# Stretches of the device's time that overlap more than this are of several streams.
_MOST_OVERLAP: Final = 0.02
# In place of an event's code: between two events, before one of the code below this bit.
_BEFORE: Final = 1 << 50
_HOLD: Final = _BEFORE - 1


@dataclass(frozen=True, slots=True)
class Backlog:
    """What looks tell of a device's time in the training phase.

    Attributes:
        holds: From when the host had the device wait until it had done what piled up, shape (n, 2),
            ns; steps in between may have taken longer.
        paused_ns: For how long it waited, those to try included.
        told: The device's time of which it is known how long it worked; waiting is in it too.
        waited_ns: How much of `told` that is.
        low_ns, high_ns: Its work in `told`: at least and at most.
        between_kernels_ns: Of `told` it was idle at least so long while phases were given out.
        clock_ns: The device's clock at each mark as if it stood still in the gaps that are known,
            on average, and while the device waited.
    """

    holds: Int64
    paused_ns: int
    told: Coverage
    waited_ns: int
    low_ns: int
    high_ns: int
    between_kernels_ns: int
    clock_ns: Int64

    @classmethod
    def nothing(cls, activity: Activity) -> Backlog:
        none = np.empty((0, 2), dtype=np.int64)
        return cls(none, 0, Coverage.of(none, (0, 0)), 0, 0, 0, 0, activity.marks.clock_ns)

    def steps_of(self, ends: Int64) -> Bool:
        """Returns which steps may have been held up, by their ends, shape (n_steps,)."""
        held = np.zeros(len(ends), dtype=bool)
        first = np.searchsorted(ends, self.holds[:, 0], side="right")
        last = np.searchsorted(ends, self.holds[:, 1], side="left")
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            held[begin : end + 1] = True
        return held


def why_no_looks(facts: Facts, options: Mapping[str, Any], looks: int) -> str:
    """Returns why looks do not tell enough of how long a device works.

    Args:
        facts: Of the training process.
        options: Of the run.
        looks: How many there were.
    """
    if looks:
        told = "1 look" if looks == 1 else f"{looks} looks"
        return f"{told} at work that had piled up: too little to tell of the rest"
    if options.get("backlog") is False:
        return "--no-backlog was asked for"
    if options.get("lines"):
        return "the device is never made to wait while lines are timed"
    refused = facts.environment_text("no_backlog")
    if refused is not None:
        return refused
    return "the run was too short to make the device wait, or work piled up in it anyway"


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Time between two marks of the training phase, one row for each, in order.

    Attributes:
        code: What the host did meanwhile.
        is_phase: That was to give out work.
        step: Number of the step.
        took_ns: On the device's clock.
        begins, ends: There, by the host's clock.
        queued: All of it had been given out before the device began with it.
        held: That is because the device was made to wait before.
        look: By which look, -1 for none; the device may have been made to wait for a moment only.
        usable: Of one stream, and the host neither waited nor copied.
    """

    code: Int64
    is_phase: Bool
    step: Int64
    took_ns: Int64
    begins: Int64
    ends: Int64
    queued: Bool
    held: Bool
    look: Int64
    usable: Bool

    def spans(self, chosen: Bool) -> Coverage:
        spans = np.stack((self.begins[chosen], self.ends[chosen]), axis=1)
        return Coverage.of(spans, (int(self.begins[0]), int(self.ends[-1])))


def backlog_of(activity: Activity, timeline: Timeline) -> Backlog:
    """Works out what looks tell: nothing where there was none.

    Args:
        activity: Of the device.
        timeline: Of the thread that gives it work.
    """
    marks = activity.marks
    window = timeline.window
    inside = (marks.put_ns >= window.loop_start) & (marks.put_ns <= window.loop_end)
    is_hold = (marks.flags & DeviceMarkFlag.HELD_UP > 0) & inside
    holds = np.flatnonzero(is_hold[1:])
    if len(holds) == 0 or len(timeline.events) == 0:
        return Backlog.nothing(activity)
    took = np.diff(marks.clock_ns)
    early, _ = marks.reached_ns()
    queued = (marks.put_ns[1:] < early[:-1]) & (took >= 0) & ~is_hold[1:]
    # What piled up is done within as long as the device waited, for it keeps up with the host: what
    # is queued after that is so for other reasons.
    runs = np.minimum(
        _runs_after(holds, queued),
        np.searchsorted(activity.reached_ns, activity.reached_ns[holds + 1] + took[holds]),
    )
    is_look = marks.flags[holds + 1] & DeviceMarkFlag.TRIED == 0
    first, last = _inner(inside)
    stretches = _stretches(activity, timeline, queued, is_hold[1:], runs, is_look, first, last)
    known = _known(stretches, activity.least)
    waited = (stretches.code == _HOLD) & (stretches.ends <= window.loop_end)
    told = stretches.spans(known.told | waited)
    alone_ns = stretches.took_ns[known.told | waited].sum()
    if told.total_ns() < (1 - _MOST_OVERLAP) * alone_ns:
        known = _Known.nothing(len(stretches.code))
        told = stretches.spans(waited)
    idle = np.zeros(len(took), dtype=np.int64)
    idle[holds] = np.maximum(took[holds], 0)
    idle[first:last] += known.gaps_ns
    looked_until = np.minimum(runs[is_look], len(early) - 1)
    return Backlog(
        holds=np.stack((marks.put_ns[holds[is_look]], early[looked_until]), axis=1),
        paused_ns=int(np.maximum(took[holds], 0).sum()),
        told=told,
        waited_ns=stretches.spans(waited).total_ns(),
        low_ns=known.low_ns,
        high_ns=known.high_ns,
        between_kernels_ns=known.between_kernels_ns,
        clock_ns=marks.clock_ns - np.concatenate(([0], np.cumsum(idle))),
    )


def _inner(inside: Bool) -> tuple[int, int]:
    """Returns the range of stretches whose two marks both lie inside."""
    found = np.flatnonzero(inside)
    return int(found[0]), int(found[-1])


def _runs_after(holds: Int64, queued: Bool) -> Int64:
    """Returns for each hold the first stretch after it that was not queued as a whole."""
    stops = np.append(np.flatnonzero(~queued), len(queued))
    found: Int64 = stops[np.searchsorted(stops, holds, side="right")]
    return found


def _stretches(
    activity: Activity,
    timeline: Timeline,
    queued: Bool,
    is_hold: Bool,
    runs: Int64,
    is_look: Bool,
    first: int,
    last: int,
) -> _Stretches:
    put, events = activity.marks.put_ns, timeline.events
    held, look = np.zeros(len(queued), dtype=bool), np.full(len(queued), -1)
    for number, hold in enumerate(np.flatnonzero(is_hold).tolist()):
        behind = slice(hold + 1, int(runs[number]))
        held[behind] = True
        look[behind] = number if is_look[number] else -1
    part = slice(first, last)
    begins, ends = put[first:last], put[first + 1 : last + 1]
    middle = begins + (ends - begins) // 2
    # Pauses of gc interrupt what the host does, wherever they come.
    event = timeline.nesting.innermost(events, middle, besides=events.is_kind(Kind.GC))
    span = (int(put[first]), int(put[last]))
    apart = np.concatenate(
        (
            timeline.segments,
            np.stack([getattr(events, end)[events.is_kind(*WAITS)] for end in ("start", "end")], 1),
        )
    )
    waits = Coverage.of(apart, span).inside_ns(begins, ends) > 0
    took = np.diff(activity.marks.clock_ns[first : last + 1])
    reached = activity.reached_ns[first : last + 1]
    in_loop = reached[1:] <= timeline.window.loop_end
    return _Stretches(
        code=_codes(events, event, is_hold[part]),
        is_phase=(event >= 0) & events.is_kind(*GIVES_WORK)[event],
        step=np.searchsorted(timeline.steps.ends, middle),
        took_ns=took,
        begins=reached[:-1],
        ends=reached[1:],
        queued=queued[part],
        held=held[part],
        look=look[part],
        usable=(took >= 0) & ~is_hold[part] & ~waits & in_loop,
    )


def _codes(events: Events, event: Int64, is_hold: Bool) -> Int64:
    """Returns a number for what the host did: of an event, or before which, or while waiting."""
    code = (events.kind[event].astype(np.int64) << 40) | (
        events.flags[event].astype(np.int64) << 32
    )
    code |= events.site[event].astype(np.int64)
    code[is_hold] = _HOLD
    following = np.append(np.where(event[1:] >= 0, code[1:], 0), 0)
    return np.where((event < 0) & ~is_hold, _BEFORE + following, code)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of stretches.

    Attributes:
        told: Of which, shape (n,).
        gaps_ns: For how long the device was idle in each, on average, shape (n,).
    """

    told: Bool
    gaps_ns: Int64
    low_ns: int = 0
    high_ns: int = 0
    between_kernels_ns: int = 0

    @classmethod
    def nothing(cls, count: int) -> _Known:
        return cls(np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64))


def _known(stretches: _Stretches, least: Coverage) -> _Known:
    """Lets those that were looked at speak for all others in the same place of their steps.

    Args:
        stretches: Of the training phase.
        least: When the device surely worked.
    """
    worked = stretches.held & stretches.usable
    low = high = float(stretches.took_ns[worked].sum())
    between = 0.0
    told, gaps = worked.copy(), np.zeros(len(worked), dtype=np.int64)
    looked = stretches.begins[stretches.look >= 0]
    begin = int(stretches.begins[0])
    until = begin + _REACH * (int(looked[-1]) - begin) if len(looked) else begin
    for place in _places(stretches):
        works = _by_look(stretches, place)
        rest = place[~stretches.held[place] & (stretches.begins[place] <= until)]
        queued = stretches.queued[rest]
        if len(works) < MIN_LOOKS or len(rest) == 0 or queued.mean() > _MOST_QUEUED:
            continue
        rest = rest[~queued]
        mean = float(works.mean())
        spread = float(works.std(ddof=1)) / len(works) ** 0.5
        off = t_quantile(_CONFIDENCE, len(works) - 1) * spread + _MARGIN * mean
        took = stretches.took_ns[rest]
        surely = float(least.inside_ns(stretches.begins[rest], stretches.ends[rest]).sum())
        at_least, at_most = len(rest) * (mean - off - _MARK_NS), len(rest) * (mean + off)
        whole = float(took.sum())
        if at_least > whole or at_most + len(rest) * MARK_LATENCY_NS < surely:
            continue  # the others are not like those that were looked at
        at_least, at_most = max(at_least, surely), min(max(at_most, surely), whole)
        told[rest] = True
        gaps[rest] = np.maximum(took - round(mean), 0)
        low, high = low + at_least, high + at_most
        between += (whole - at_most) if stretches.is_phase[rest[0]] else 0.0
    return _Known(told, gaps, round(low), round(high), round(between))


def _by_look(stretches: _Stretches, place: Int64) -> npt.NDArray[np.float64]:
    """Returns how long the device worked at a place, ns, on average in each look."""
    place = place[stretches.look[place] >= 0]
    _, look = np.unique(stretches.look[place], return_inverse=True)
    means: npt.NDArray[np.float64]
    means = np.bincount(look, weights=stretches.took_ns[place]) / np.maximum(np.bincount(look), 1)
    return means


def _places(stretches: _Stretches) -> list[Int64]:
    """Returns the usable stretches of each place in a step that was looked at.

    A place is the first, second, ... time in a step that the host did one thing.
    """
    found = []
    for code in np.unique(stretches.code[(stretches.look >= 0) & stretches.usable]).tolist():
        index = np.flatnonzero(stretches.code == code)
        step, number = stretches.step[index], np.arange(len(index))
        begins = np.concatenate(([True], step[1:] != step[:-1]))
        rank = number - np.maximum.accumulate(np.where(begins, number, 0))
        usable = stretches.usable[index]
        looked_at = np.unique(rank[(stretches.look[index] >= 0) & usable])
        found += [index[(rank == wanted) & usable] for wanted in looked_at.tolist()]
    return found
