"""The devices of a run as the summary has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.device_time import device_times
from trainprof.analysis.summary import Device
from trainprof.analysis.timeline import Timeline
from trainprof.record.schema import Kind, TransferFlag

# On fewer marks no figure is to rest.
MIN_MARKS: Final = 20


def devices_of(
    details: npt.NDArray[np.void], timeline: Timeline, device: str | None
) -> list[Device] | None:
    """Returns `devices[]` of the summary; None where one alone did not tell what it did.

    Args:
        details: Of the training process.
        timeline: Of its training thread.
        device: One that it used, such as "cuda:0".
    """
    if several_devices(details, timeline):
        return None
    window, steps = timeline.window, max(len(timeline.steps.ends), 1)
    kind = str(device).partition(":")[0]
    times = device_times(
        details, timeline.events, timeline.thread, (window.loop_start, window.loop_end)
    )
    rows = [
        Device(
            index=one.index,
            name=f"{kind}:{one.index}",
            busy_share=list(one.busy_share),
            idle_because=None,
            per_step_s={key: s / steps for key, s in one.phases_s.items()},
            queue_delay_s=None if one.queue_delay_s is None else list(one.queue_delay_s),
            memory=None,
            marks=one.marks,
        )
        for one in times
        if one.marks >= MIN_MARKS
    ]
    return rows or None


def several_devices(details: npt.NDArray[np.void], timeline: Timeline) -> bool:
    """Whether work went to more than one device: each also waits for the others.

    A mark that is not reached then does not tell that its own device had work.
    """
    events = timeline.all_events
    copies = events.flags[events.is_kind(Kind.TRANSFER)]
    marked = details["site"][details["kind"] == Kind.DEVICE_MARK]
    return bool((copies & TransferFlag.D2D).any()) or len(np.unique(marked)) > 1


def least_busy(devices: Sequence[Device] | None) -> float | None:
    """Returns the share of training in which the busiest device was busy at least."""
    return max((one.busy_share[0] for one in devices or () if one.busy_share), default=None)
