"""When a GPU was busy, by CUDA events in its streams, and during which host events."""

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

# Clocks of host and device drift apart: they are aligned again after this number of marks.
_ALIGNED_MARKS: Final = 256
# A phase begins at its mark, or at that of the phase that ended just before: within 10 us and the
# time of a mark.
_ADJACENT_NS: Final = 40_000
# A copy within 30 us after a mark gets no other mark at its beginning.
_COPY_ADJACENT_NS: Final = 70_000
# An idle device needs some time to reach a mark, which does not count as busy.
_MARK_LATENCY_NS: Final = 10_000
# Two marks that are reached in another order than recorded are in different streams.
_OTHER_STREAM_NS: Final = 20_000
# With fewer marks no figure is computed.
_MIN_MARKS: Final = 20
PHASES: Final = (
    Kind.FORWARD,
    Kind.LOSS,
    Kind.BACKWARD,
    Kind.OPTIMIZER_STEP,
    Kind.ZERO_GRAD,
)
# The host launches kernels in these: between two kernels the device may be idle or not.
LAUNCHES: Final = (
    Kind.FORWARD,
    Kind.LOSS,
    Kind.BACKWARD,
    Kind.OPTIMIZER_STEP,
    Kind.SCALER_STEP,
    Kind.SCALER_UPDATE,
    Kind.CLIP_GRADIENTS,
    Kind.ZERO_GRAD,
)
# Waits, also inside one of those: a mark was recorded as they began.
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
    """One thread's marks (CUDA events) on one device, in the order of recording.

    Attributes:
        put_ns: When the host recorded each in the stream.
        seen_ns: When the host first saw it reached.
        clock_ns: When it was reached, by the device's clock since the first.
    """

    put_ns: Int64
    seen_ns: Int64
    clock_ns: Int64

    def __len__(self) -> int:
        return len(self.put_ns)

    def ends_of(self, phase: Events) -> tuple[Int64, Int64, Bool]:
        """Returns the marks at the start and end of each event, and whether both exist."""
        put = self.put_ns
        first = np.searchsorted(put, phase.start, side="right") - 1
        last = np.searchsorted(put, phase.end, side="left")
        known = (first >= 0) & (last < len(put))
        first, last = np.maximum(first, 0), np.minimum(last, len(put) - 1)
        known &= phase.start - put[first] <= _ADJACENT_NS
        known &= put[last] - phase.end <= _ADJACENT_NS
        return first, last, known

    def reached_ns(self) -> tuple[Int64, Int64]:
        """Returns when each was reached by the host's clock: earliest and latest.

        A mark is reached after it was recorded and before it was seen. Over a stretch of marks the
        tightest of these bounds hold for the offset between the clocks of host and device.
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
    """Copies to or from a device, by its marks.

    Attributes:
        event: Their index among the thread's events.
        spans: Start and end on the device, by the host's clock, shape (n, 2), ns, without other
            work. Equal where unknown.
        is_beside: On another stream.
    """

    event: Int64
    spans: Int64
    is_beside: Bool


@dataclass(frozen=True, slots=True)
class Activity:
    """When a device was busy over the run, by its marks.

    Attributes:
        index: Its number in the script.
        marks: The training thread's.
        reached_ns: When each was reached by the host's clock, most likely.
        least, most: Busy time: lower and upper bound.
        copying: While it only copied to or from the host.
        helpers: Marks of other threads, which autograd uses.
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
        """When the first mark was recorded: the time before is unknown."""
        return int(self.marks.put_ns[0])


def _marks_of(details: npt.NDArray[np.void], thread: int) -> Marks:
    rows = details[details["thread"] == thread]
    since = rows["value"].astype(np.uint64).view(np.int64)
    since = np.where(rows["flags"] & DeviceMarkFlag.FIRST, 0, since)
    return Marks(rows["start"].astype(np.int64), rows["end"].astype(np.int64), np.cumsum(since))


def _activity(device: int, details: npt.NDArray[np.void], timeline: Timeline) -> Activity:
    """Returns a device's activity from its marks of all threads."""
    window, events = (timeline.window.start, timeline.window.end), timeline.events
    others = set(np.unique(details["thread"]).tolist()) - {timeline.thread}
    marks = _marks_of(details, timeline.thread)
    early, late = marks.reached_ns()
    reached = early + (late - early) // 2
    copies = _copies(marks, reached, events)
    at_most = (
        np.stack((marks.put_ns, late), axis=1),
        _unknown(marks, events, window),
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


def _unknown(marks: Marks, events: Events, window: tuple[int, int]) -> Int64:
    """Returns the time after the last mark if phases follow: their marks were never seen."""
    ends = events.end[events.is_kind(*PHASES)]
    last = int(marks.put_ns.max())
    if len(ends) == 0 or ends.max() <= last + _ADJACENT_NS:
        return np.empty((0, 2), dtype=np.int64)
    return np.array([[last, window[1]]], dtype=np.int64)


def _unmarked_waits(events: Events) -> Int64:
    """Returns the reads of values without a mark: the device may have been busy."""
    reads = events.where(events.is_kind(Kind.SYNC) & events.has(SyncFlag.IN_CHAIN))
    return np.stack((reads.start, reads.end), axis=1)


def _copies(marks: Marks, reached: Int64, events: Events) -> Copies:
    """Returns the copies between a mark at their end and one at or just before their start."""
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
    """The device's activity during the training thread's own time in each event, ns, shape (n,).

    Attributes:
        least, most: Lower and upper bound of busy or copying time; both include the unknown time
            before the first mark.
        least_ns, most_ns: Those within the own time of each event.
        copying_ns: The same, while it only copied.
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
        unknown = np.array([[window.start, activity.first_ns]], dtype=np.int64)
        least, most = (
            Coverage.of(
                np.concatenate((sure.spans(), activity.copying.spans(), unknown)),
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
        """Returns the time in syncs and blocking copies in which the device was surely busy."""
        events = self.timeline.events
        is_sync, is_copy = waiting(events)
        # The time before the first mark is unknown.
        index = np.flatnonzero((is_sync | is_copy) & (events.start >= self.activity.first_ns))
        # A copy waits for earlier kernels, not for itself.
        ns = self.least_ns[index] - np.where(is_copy[index], self.copying_ns[index], 0)
        return DeviceWaits(index, np.maximum(ns, 0))

    def exposed_ns(self) -> Int64:
        """Returns the own time of each event in which the device was surely idle."""
        left: Int64 = np.maximum(self.timeline.nesting.own_ns - self.most_ns, 0)
        return left


def waiting(events: Events) -> tuple[Bool, Bool]:
    """Returns which events wait for a device: syncs, and copies that block the host."""
    is_sync = events.is_kind(Kind.SYNC) & ~events.has(SyncFlag.ON_CPU)
    is_copy = events.is_kind(Kind.TRANSFER) & ~events.has(TransferFlag.NON_BLOCKING)
    return is_sync, is_copy


def needed_syncs(timeline: Timeline) -> Bool:
    """Returns which events are syncs that no script can avoid, shape (n,).

    Those of gradient scalers and checkpoints, and of torch's optimizers in their steps (LBFGS), but
    not those in the closure that they call.
    """
    events, nesting = timeline.events, timeline.nesting
    is_sync, _ = waiting(events)
    by_others = nesting.inside(
        events.is_kind(Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.CHECKPOINT_SAVE)
    )
    in_update = nesting.inside(events.is_kind(Kind.OPTIMIZER_STEP))
    in_update &= ~nesting.inside(events.is_kind(Kind.CLOSURE))
    in_update &= events.has(SyncFlag.BY_TORCH)
    needed: Bool = is_sync & (by_others | in_update)
    return needed


def launches_kernels(timeline: Timeline) -> Bool:
    """Returns in which events' own time the host launches kernels, shape (n,)."""
    launches = timeline.events.is_kind(*LAUNCHES)
    return launches | (timeline.nesting.inside(launches) & ~timeline.events.is_kind(*WAITS))


def device_overlap(details: npt.NDArray[np.void], timeline: Timeline) -> Overlap | None:
    """Returns the device's activity in the thread's time; None with several, or few marks."""
    marks = details[details["kind"] == Kind.DEVICE_MARK]
    own = marks["site"][marks["thread"] == timeline.thread]
    devices, counts = np.unique(own, return_counts=True)
    if several_devices(details, timeline) or max(counts, default=0) < _MIN_MARKS:
        return None
    device = int(devices[counts.argmax()])
    return Overlap.of(_activity(device, marks[marks["site"] == device], timeline), timeline)


def several_devices(details: npt.NDArray[np.void], timeline: Timeline) -> bool:
    """Whether the script used more than one device: each also waits for the others.

    A mark that is not reached then doesn't show that its device is busy.
    """
    events = timeline.all_events
    copies = events.flags[events.is_kind(Kind.TRANSFER)]
    marked = details["site"][details["kind"] == Kind.DEVICE_MARK]
    # A few may be from before the script chose its device.
    used = np.unique(marked, return_counts=True)[1] >= _MIN_MARKS
    return bool((copies & TransferFlag.D2D).any()) or bool(used.sum() > 1)
