"""What a device did while the training thread did what it did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.device.busy import GIVES_WORK, WAITS, Activity
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.intervals import Coverage, own_inside_ns
from trainprof.analysis.timeline.ledger import DeviceWaits
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind, SyncFlag, TransferFlag


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What the device did during the training thread's own time in each event, ns, shape (n,).

    Attributes:
        activity: Of the device.
        timeline: Of the thread.
        least, most: Time in which it surely, and at most, worked or copied; before the first mark
            nothing is known, which is in both.
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
    def of(cls, activity: Activity, timeline: Timeline) -> Meanwhile:
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
        """Returns the own time of each event in which the device had surely run dry."""
        left: Int64 = np.maximum(self.timeline.nesting.own_ns - self.most_ns, 0)
        return left


def waiting(events: Events) -> tuple[Bool, Bool]:
    """Returns which events wait for a device: syncs, and copies that block the host."""
    is_sync = events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.ON_CPU == 0)
    is_copy = events.is_kind(Kind.TRANSFER) & (events.flags & TransferFlag.NON_BLOCKING == 0)
    return is_sync, is_copy


def needed_syncs(timeline: Timeline) -> Bool:
    """Returns which events are syncs that no script could leave out, shape (n,).

    Those of gradient scalers and checkpoints, and what torch's own optimizers ask for in their
    steps (LBFGS): not what a closure does that they call.
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
    """Returns in which events' own time the host gives out work, shape (n,)."""
    gives = timeline.events.is_kind(*GIVES_WORK)
    return gives | (timeline.nesting.inside(gives) & ~timeline.events.is_kind(*WAITS))
