"""The devices of a run as the summary has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.device.activity import PHASES, Overlap, activity_of
from trainprof.analysis.device.idle import idle_of, once_of
from trainprof.analysis.device.kernel_share import KernelShare
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY, Attribution
from trainprof.analysis.timeline.steady_state import Steady
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind, TransferFlag

# On fewer marks no figure is to rest.
MIN_MARKS: Final = 20
# On a device copies take time too, of their own.
_COPY_KEY: Final = KEY["transfer"]
# Autograd may call for it on a thread of its own.
_RECOMPUTE_KEY: Final = KEY["recompute"]


def device_overlap(details: npt.NDArray[np.void], timeline: Timeline) -> Overlap | None:
    """Returns what the device did during the training thread's time.

    None where one alone did not tell it.
    """
    if several_devices(details, timeline):
        return None
    window = (timeline.window.start, timeline.window.end)
    activities = activity_of(details, timeline.events, timeline.thread, window)
    most = max(activities, key=lambda activity: len(activity.marks), default=None)
    if most is None or len(most.marks) < MIN_MARKS:
        return None
    return Overlap.of(most, timeline)


def device_of(
    overlap: Overlap,
    attribution: Attribution,
    steady: Steady,
    device: str | None,
    compiling: Coverage,
    driver: KernelShare | None = None,
) -> Device:
    """Returns an entry of the summary's `devices[]`.

    Args:
        device: Its name as the script has it, such as "cuda:0".
        driver: For how long a kernel ran there, once warm-up was over.
    """
    activity, timeline = overlap.activity, overlap.timeline
    idle = idle_of(overlap, attribution, once_of(overlap, compiling, steady), driver)
    times = _phase_times(overlap, attribution)
    delay = _queue_delay_s(overlap)
    kind = str(device).partition(":")[0]
    return Device(
        index=activity.index,
        name=f"{kind}:{activity.index}",
        busy_share=list(idle.busy_share),
        idle_because=idle.because_s,
        per_step_s=times.of_steps(timeline.steps.ends, timeline.step_starts, steady.mask),
        queue_delay_s=delay,
        memory=None,
        marks=len(activity.marks),
        seconds=times.in_all(),
        exposed_s=idle.exposed_s,
        ran_dry=idle.ran_dry,
        launch_bound_share=list(idle.launch_bound_share),
        copy_wait_s=idle.copy_wait_s,
        kernel_share=None if driver is None else driver.mean,
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """Time on the device for phases and copies: ledger key, begin on the host, duration, ns."""

    key: npt.NDArray[np.int8]
    begun_ns: Int64
    took_ns: Int64

    def in_all(self) -> dict[str, float]:
        return {
            LEDGER_KEYS[key]: float(self.took_ns[self.key == key].sum() / 1e9)
            for key in np.unique(self.key).tolist()
        }

    def of_steps(self, ends: Int64, starts: Int64, steady: Bool) -> dict[str, float]:
        """Returns the mean of a steady step, of all steps where none is."""
        chosen = steady if steady.any() else np.ones(len(ends), dtype=bool)
        if len(ends) == 0:
            return {}
        step = np.searchsorted(ends, self.begun_ns, side="right")
        inside = (step < len(ends)) & (self.begun_ns >= starts[0])
        inside &= chosen[np.minimum(step, len(ends) - 1)]
        return {
            LEDGER_KEYS[key]: float(
                self.took_ns[inside & (self.key == key)].sum() / chosen.sum() / 1e9
            )
            for key in np.unique(self.key).tolist()
            if key != KEY["evaluation"]
        }


def _phase_times(overlap: Overlap, attribution: Attribution) -> _Times:
    """Innermost wins: what is recomputed in a backward is not backward."""
    activity, timeline = overlap.activity, overlap.timeline
    events = timeline.events
    index = np.flatnonzero(events.is_kind(*PHASES) & (attribution.key >= 0))
    phase = events.where(index)
    first, last, known = activity.marks.ends_of(phase)
    clock = activity.marks.clock_ns
    took = np.where(known, np.maximum(clock[last] - clock[first], 0), 0)
    again = attribution.key[index] == _RECOMPUTE_KEY
    for marks in activity.helpers:
        first, last, known = marks.ends_of(phase)
        took = np.where(again & known, marks.clock_ns[last] - marks.clock_ns[first], took)
    row_of = np.full(len(events), -1, dtype=np.int64)
    row_of[index] = np.arange(len(index))
    around = timeline.nesting.nearest(row_of >= 0)[index]
    above = np.where(around >= 0, row_of[around], -1)
    own = took.copy()
    np.subtract.at(own, above[above >= 0], took[above >= 0])
    copies = activity.copies
    evaluates = attribution.key[copies.event] == KEY["evaluation"]
    copy_key = np.where(evaluates, KEY["evaluation"], _COPY_KEY).astype(np.int8)
    copied = copies.spans[:, 1] - copies.spans[:, 0]
    return _Times(
        np.concatenate((attribution.key[index], copy_key)),
        np.concatenate((phase.start, events.start[copies.event])),
        np.concatenate((np.maximum(own, 0), copied)),
    )


def _queue_delay_s(overlap: Overlap) -> list[float] | None:
    """How long after they were given out phases of the loop began, on average: at least, at most.

    Between the mean over marks that were surely, and at most, reached so late.
    """
    activity, timeline = overlap.activity, overlap.timeline
    events, window = timeline.events, timeline.window
    inside = (events.start >= window.loop_start) & (events.end <= window.loop_end)
    phase = events.where(inside & events.is_kind(*PHASES))
    first, _, known = activity.marks.ends_of(phase)
    first = first[known]
    if len(first) == 0:
        return None
    early, late = activity.marks.reached_ns()
    put = activity.marks.put_ns[first]
    return [float((reached[first] - put).mean() / 1e9) for reached in (early, late)]


def several_devices(details: npt.NDArray[np.void], timeline: Timeline) -> bool:
    """Whether work went to more than one device: each also waits for the others.

    A mark that is not reached then does not tell that its own device had work.
    """
    events = timeline.all_events
    copies = events.flags[events.is_kind(Kind.TRANSFER)]
    marked = details["site"][details["kind"] == Kind.DEVICE_MARK]
    # A few may have been put before the script had told which one it works on.
    used = np.unique(marked, return_counts=True)[1] >= MIN_MARKS
    return bool((copies & TransferFlag.D2D).any()) or bool(used.sum() > 1)
