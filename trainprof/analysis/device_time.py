"""What the device did, by the marks in its streams that it reached; nobody waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.events import Bool, Events, Int64
from trainprof.record.schema import DeviceMarkFlag, Kind

# Clocks of host and device drift apart: they are aligned anew over so many marks.
ALIGNED_MARKS: Final = 256
# A phase begins at its own mark, or at that of the phase that ended just before.
_ADJACENT_NS: Final = 10_000
PHASES: Final[Mapping[Kind, str]] = {
    Kind.FORWARD: "forward",
    Kind.LOSS: "loss",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER_STEP: "optimizer",
    Kind.ZERO_GRAD: "zero_grad",
}


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

    def reached_ns(self) -> tuple[Int64, Int64]:
        """Returns when each was reached by the host's clock: not before, and not after.

        A mark is reached after it was put and before it was seen. Both hold for all marks of a
        stretch, which leaves little room: where the device was idle as one was put, it was reached
        at once; where the host looked just after one was reached, it was seen at once.
        """
        if len(self) == 0:
            return self.put_ns, self.put_ns
        firsts = np.arange(0, max(len(self) - ALIGNED_MARKS // 2, 1), ALIGNED_MARKS)
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
class DeviceTime:
    """One device in the training phase.

    Attributes:
        index: Its number, as the script has it.
        busy_share: Of the phase: at least and at most. At least while a mark was put and not yet
            reached, for there was work before it; at most that and each phase's time on the device.
        phases_s: Time on the device by ledger key.
        queue_delay_s: How long after the host gave them out phases began on the device, on average:
            at least and at most. Near 0 the device waits for the host.
        marks: How many the figures rest on.
    """

    index: int
    busy_share: tuple[float, float]
    phases_s: dict[str, float]
    queue_delay_s: tuple[float, float] | None
    marks: int


def marks_of(details: npt.NDArray[np.void], thread: int, device: int) -> Marks:
    """Picks a thread's marks on a device out of a process's details."""
    is_mark = (details["kind"] == Kind.DEVICE_MARK) & (details["thread"] == thread)
    rows = details[is_mark & (details["site"] == device)]
    since = rows["value"].astype(np.uint64).view(np.int64)
    since = np.where(rows["flags"] & DeviceMarkFlag.FIRST, 0, since)
    return Marks(rows["start"].astype(np.int64), rows["end"].astype(np.int64), np.cumsum(since))


def device_times(
    details: npt.NDArray[np.void], events: Events, thread: int, window: tuple[int, int]
) -> list[DeviceTime]:
    """Works out each device that the training thread put marks on.

    Args:
        details: Of the training process.
        events: Of the training thread.
        thread: Its number.
        window: Start and end of the training phase, ns.
    """
    of_thread = (details["kind"] == Kind.DEVICE_MARK) & (details["thread"] == thread)
    found = []
    for device in np.unique(details["site"][of_thread]).tolist():
        marks = marks_of(details, thread, device)
        found.append(_device_time(device, marks, events, window))
    return found


def _device_time(device: int, marks: Marks, events: Events, window: tuple[int, int]) -> DeviceTime:
    early, late = marks.reached_ns()
    spans, phases_s, delays = [np.stack((marks.put_ns, late), axis=1)], {}, []
    inside = (events.start >= window[0]) & (events.end <= window[1])
    for kind, key in PHASES.items():
        phase = events.where(inside & events.is_kind(kind))
        first, last, known = _ends_of(marks, phase)
        phases_s[key] = float((marks.clock_ns[last] - marks.clock_ns[first])[known].sum() / 1e9)
        spans.append(np.stack((late[first], late[last]), axis=1)[known])
        delays.append(
            np.stack((early[first] - marks.put_ns[first], late[first] - marks.put_ns[first]))[
                :, known
            ]
        )
    least = _covered_ns(np.stack((marks.put_ns, early), axis=1), window)
    most = _covered_ns(np.concatenate(spans), window)
    length = max(window[1] - window[0], 1)
    delay = np.concatenate(delays, axis=1)
    mean = delay.mean(axis=1) / 1e9 if delay.shape[1] else None
    return DeviceTime(
        index=device,
        busy_share=(least / length, max(least, most) / length),
        phases_s=phases_s,
        queue_delay_s=None if mean is None else (float(mean[0]), float(mean[1])),
        marks=len(marks),
    )


def _ends_of(marks: Marks, phase: Events) -> tuple[Int64, Int64, Bool]:
    """Returns the marks at which each event began and ended, and whether there are both."""
    first = np.searchsorted(marks.put_ns, phase.start, side="right") - 1
    last = np.searchsorted(marks.put_ns, phase.end, side="left")
    known = (first >= 0) & (last < len(marks))
    first, last = np.maximum(first, 0), np.minimum(last, max(len(marks) - 1, 0))
    if len(marks):
        known &= phase.start - marks.put_ns[first] <= _ADJACENT_NS
        known &= marks.put_ns[last] - phase.end <= _ADJACENT_NS
    return first, last, known


def _covered_ns(spans: Int64, window: tuple[int, int]) -> int:
    """Returns how much of the window the spans cover together; shape (n, 2), ns."""
    spans = np.clip(spans, *window)
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) == 0:
        return 0
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    begins = np.concatenate([[True], spans[1:, 0] > reach[:-1]])
    ends = np.append(np.flatnonzero(begins)[1:] - 1, len(spans) - 1)
    return int((reach[ends] - spans[begins, 0]).sum())
