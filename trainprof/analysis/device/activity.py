"""What a device did, by the marks in its streams that it reached, and during which host events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.timeline.intervals import Coverage, own_inside_ns
from trainprof.analysis.timeline.ledger import DeviceWaits
from trainprof.record.schema import DeviceMarkFlag, Kind, SyncFlag, TransferFlag

if TYPE_CHECKING:
    from trainprof.analysis.timeline.events import Bool, Events, Int64
    from trainprof.analysis.timeline.timeline import Timeline

# Clocks of host and device drift apart: they are aligned anew over so many marks.
_ALIGNED_MARKS: Final = 256
# A phase begins at its own mark, or at that of the phase that ended just before: 10 us and what a
# mark takes.
_ADJACENT_NS: Final = 40_000
# A copy that comes within 30 us after a mark gets none of its own at its beginning.
_COPY_ADJACENT_NS: Final = 70_000
# An idle device needs some time to reach a mark; it is not work.
_MARK_LATENCY_NS: Final = 10_000
# Of two marks that are reached in the other order than they were put, each has its own stream.
_OTHER_STREAM_NS: Final = 20_000
# On fewer marks no figure is to rest.
_MIN_MARKS: Final = 20
PHASES: Final = (
    Kind.FORWARD,
    Kind.LOSS,
    Kind.BACKWARD,
    Kind.OPTIMIZER_STEP,
    Kind.ZERO_GRAD,
)
# The host gives out work in these: between two kernels the device may be idle or not.
GIVES_WORK: Final = (
    Kind.FORWARD,
    Kind.LOSS,
    Kind.BACKWARD,
    Kind.OPTIMIZER_STEP,
    Kind.SCALER_STEP,
    Kind.SCALER_UPDATE,
    Kind.CLIP_GRADIENTS,
    Kind.ZERO_GRAD,
)
# Inside one of those they keep what they are: a mark was put as they began.
WAITS: Final = (
    Kind.LOADER_INIT,
    Kind.LOADER_RESET,
    Kind.LOADER_NEXT,
    Kind.LOADER_END,
    Kind.LOADER_ERROR,
    Kind.TRANSFER,
    Kind.SYNC,
    Kind.CHECKPOINT_SAVE,
    Kind.CHECKPOINT_LOAD,
)


@dataclass(frozen=True, slots=True)
class Marks:
    """One thread's marks on one device, in the order in which they were put.

    Attributes:
        put_ns: When the host put each into the stream.
        seen_ns: When the host first saw it reached.
        clock_ns: When it was reached, on the device's clock since the first.
    """

    put_ns: Int64
    seen_ns: Int64
    clock_ns: Int64

    def __len__(self) -> int:
        return len(self.put_ns)

    def ends_of(self, phase: Events) -> tuple[Int64, Int64, Bool]:
        """Returns the marks at which each event began and ended, and whether there are both."""
        put = self.put_ns
        first = np.searchsorted(put, phase.start, side="right") - 1
        last = np.searchsorted(put, phase.end, side="left")
        known = (first >= 0) & (last < len(put))
        first, last = np.maximum(first, 0), np.minimum(last, len(put) - 1)
        known &= phase.start - put[first] <= _ADJACENT_NS
        known &= put[last] - phase.end <= _ADJACENT_NS
        return first, last, known

    def reached_ns(self) -> tuple[Int64, Int64]:
        """Returns when each was reached by the host's clock: at the earliest, and at the latest.

        A mark is reached after it was put and before it was seen. Over a stretch of marks the
        tightest of both bounds hold for the offset between the clocks of host and device.
        """
        if len(self) == 0:
            return self.put_ns, self.put_ns
        firsts = np.arange(0, max(len(self) - _ALIGNED_MARKS // 2, 1), _ALIGNED_MARKS)
        lengths = np.diff(np.append(firsts, len(self)))
        least = np.maximum.reduceat(self.put_ns - self.clock_ns, firsts)
        most = np.minimum.reduceat(self.seen_ns - self.clock_ns, firsts)
        middle = (least + most) // 2
        crossed = least > most  # by the clocks' drift and rounding
        least, most = np.where(crossed, middle, least), np.where(crossed, middle, most)
        return (
            self.clock_ns + np.repeat(least, lengths),
            self.clock_ns + np.repeat(most, lengths),
        )


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies to or from a device that its marks show: `event` is their index among the thread's
    events.

    Attributes:
        spans: Start and end on the device, by the host's clock, shape (n, 2), ns: the device did
            nothing else then. Equal where they are not known.
        is_beside: On a stream of its own.
    """

    event: Int64
    spans: Int64
    is_beside: Bool


@dataclass(frozen=True, slots=True)
class Activity:
    """What a device did over the run, as far as its marks show.

    Attributes:
        index: Its number in the script.
        marks: The training thread's; `helpers`: of other threads, which autograd computes with.
        reached_ns: When each was reached by the host's clock, most likely.
        least, most: While there was work before it: surely, and at most.
        copying: While it copied to or from the host and did nothing else.
    """

    index: int
    marks: Marks
    reached_ns: Int64
    least: Coverage
    most: Coverage
    copying: Coverage
    copies: Copies
    helpers: tuple[Marks, ...] = ()

    @property
    def first_ns(self) -> int:
        """When the first mark was put: before, nothing is known."""
        return int(self.marks.put_ns[0])


def _marks_of(details: npt.NDArray[np.void], thread: int) -> Marks:
    rows = details[details["thread"] == thread]
    since = rows["value"].astype(np.uint64).view(np.int64)
    since = np.where(rows["flags"] & DeviceMarkFlag.FIRST, 0, since)
    return Marks(rows["start"].astype(np.int64), rows["end"].astype(np.int64), np.cumsum(since))


def _activity(device: int, details: npt.NDArray[np.void], timeline: Timeline) -> Activity:
    """Works out what a device did from its marks of all threads."""
    window, events = (timeline.window.start, timeline.window.end), timeline.events
    others = set(np.unique(details["thread"]).tolist()) - {timeline.thread}
    marks = _marks_of(details, timeline.thread)
    early, late = marks.reached_ns()
    reached = early + (late - early) // 2
    copies = _copies(marks, reached, events)
    at_most = (
        np.stack((marks.put_ns, late), axis=1),
        _untold(marks, events, window),
        _unmarked_waits(events),
    )
    return Activity(
        index=device,
        marks=marks,
        reached_ns=reached,
        least=Coverage.of(np.stack((marks.put_ns + _MARK_LATENCY_NS, early), axis=1), window),
        most=Coverage.of(np.concatenate(at_most), window),
        copying=Coverage.of(copies.spans, window),
        copies=copies,
        helpers=tuple(_marks_of(details, thread) for thread in sorted(others)),
    )


def _untold(marks: Marks, events: Events, window: tuple[int, int]) -> Int64:
    """Returns the time after the last mark if there were phases: theirs were never seen reached."""
    ends = events.end[events.is_kind(*PHASES)]
    last = int(marks.put_ns.max())
    if len(ends) == 0 or ends.max() <= last + _ADJACENT_NS:
        return np.empty((0, 2), dtype=np.int64)
    return np.array([[last, window[1]]], dtype=np.int64)


def _unmarked_waits(events: Events) -> Int64:
    """Returns the reads of values that got no mark: the device may have worked all the while."""
    reads = events.where(events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.IN_CHAIN > 0))
    return np.stack((reads.start, reads.end), axis=1)


def _copies(marks: Marks, reached: Int64, events: Events) -> Copies:
    """Returns the copies between marks put as they ended and as they began, or just before."""
    index = np.flatnonzero(events.is_kind(Kind.TRANSFER))
    start, end = events.start[index], events.end[index]
    last = np.searchsorted(marks.put_ns, end, side="left")
    known = (last > 0) & (last < len(marks))
    last = np.clip(last, min(1, len(marks) - 1), len(marks) - 1)
    before = np.maximum(last - 1, 0)
    known &= marks.put_ns[last] - end <= _ADJACENT_NS
    known &= start - marks.put_ns[before] <= _COPY_ADJACENT_NS
    index, start, last, before = index[known], start[known], last[known], before[known]
    is_beside = reached[last] < reached[before] - _OTHER_STREAM_NS
    begins = np.maximum(reached[before], start)
    ends = np.where(is_beside, begins, np.maximum(reached[last], begins))
    return Copies(index, np.stack((begins, ends), axis=1), is_beside)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What the device did during the training thread's own time in each event, ns, shape (n,).

    Attributes:
        least, most: Time in which it surely, and at most, worked or copied; both hold the time
            before the first mark, of which nothing is known.
        least_ns, most_ns: Those within the own time of each event.
        copying_ns: Likewise, while it did nothing but copy.
    """

    activity: Activity
    timeline: Timeline
    least: Coverage
    most: Coverage
    least_ns: Int64
    most_ns: Int64
    copying_ns: Int64

    @classmethod
    def of(cls, activity: Activity, timeline: Timeline) -> Overlap:
        window, events, nesting = timeline.window, timeline.events, timeline.nesting
        untold = np.array([[window.start, activity.first_ns]], dtype=np.int64)
        least, most = (
            Coverage.of(
                np.concatenate((sure.spans(), activity.copying.spans(), untold)),
                (window.start, window.end),
            )
            for sure in (activity.least, activity.most)
        )
        return cls(
            activity,
            timeline,
            least,
            most,
            own_inside_ns(least, events, nesting),
            own_inside_ns(most, events, nesting),
            own_inside_ns(activity.copying, events, nesting),
        )

    def waits(self) -> DeviceWaits:
        """Returns the time in syncs and blocking copies in which the device surely worked."""
        events = self.timeline.events
        is_sync, is_copy = waiting(events)
        # Of the time before the first mark it is not known.
        index = np.flatnonzero((is_sync | is_copy) & (events.start >= self.activity.first_ns))
        # A copy waits for what was given out before it, not for itself.
        ns = self.least_ns[index] - np.where(is_copy[index], self.copying_ns[index], 0)
        return DeviceWaits(index, np.maximum(ns, 0))

    def exposed_ns(self) -> Int64:
        """Returns the own time of each event in which the device was surely idle."""
        left: Int64 = np.maximum(self.timeline.nesting.own_ns - self.most_ns, 0)
        return left


def waiting(events: Events) -> tuple[Bool, Bool]:
    """Returns which events wait for a device: syncs, and copies that block the host."""
    is_sync = events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.ON_CPU == 0)
    is_copy = events.is_kind(Kind.TRANSFER) & (events.flags & TransferFlag.NON_BLOCKING == 0)
    return is_sync, is_copy


def needed_syncs(timeline: Timeline) -> Bool:
    """Returns which events are syncs that no script could leave out, shape (n,).

    Those of gradient scalers and checkpoints, and of torch's own optimizers in their steps (LBFGS),
    but not those in the closure that they call.
    """
    events, nesting = timeline.events, timeline.nesting
    is_sync, _ = waiting(events)
    by_others = nesting.inside(
        events.is_kind(Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.CHECKPOINT_SAVE)
    )
    in_update = nesting.inside(events.is_kind(Kind.OPTIMIZER_STEP))
    in_update &= ~nesting.inside(events.is_kind(Kind.CLOSURE))
    in_update &= (events.flags & SyncFlag.BY_TORCH) > 0
    needed: Bool = is_sync & (by_others | in_update)
    return needed


def gives_work(timeline: Timeline) -> Bool:
    """Returns in which events' own time the host launches work, shape (n,)."""
    gives = timeline.events.is_kind(*GIVES_WORK)
    return gives | (timeline.nesting.inside(gives) & ~timeline.events.is_kind(*WAITS))


def device_overlap(details: npt.NDArray[np.void], timeline: Timeline) -> Overlap | None:
    """Returns what the device did in the training thread's time; None with several or few marks."""
    marks = details[details["kind"] == Kind.DEVICE_MARK]
    own = marks["site"][marks["thread"] == timeline.thread]
    devices, counts = np.unique(own, return_counts=True)
    if several_devices(details, timeline) or max(counts, default=0) < _MIN_MARKS:
        return None
    device = int(devices[counts.argmax()])
    return Overlap.of(_activity(device, marks[marks["site"] == device], timeline), timeline)


def several_devices(details: npt.NDArray[np.void], timeline: Timeline) -> bool:
    """Whether work went to more than one device: each also waits for the others.

    A mark that is not reached then doesn't show that its own device had work.
    """
    events = timeline.all_events
    copies = events.flags[events.is_kind(Kind.TRANSFER)]
    marked = details["site"][details["kind"] == Kind.DEVICE_MARK]
    # A few may have been put before the script had told which one it works on.
    used = np.unique(marked, return_counts=True)[1] >= _MIN_MARKS
    return bool((copies & TransferFlag.D2D).any()) or bool(used.sum() > 1)
