"""The devices of a run in its summary: their time, copies, synchronizing calls and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.device.activity import PHASES, Overlap, device_overlap
from trainprof.analysis.device.host_waits import (
    emptied_caches,
    found_syncs_of,
    held_back,
    placements,
    sync_points,
    transfers,
)
from trainprof.analysis.device.idle import idle_of
from trainprof.analysis.device.kernel_share import KernelShare, kernel_share
from trainprof.analysis.device.memory import out_of_memory_of, with_memory
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.device import (
    Device,
    EmptiedCache,
    FoundSyncs,
    OutOfMemory,
    Placement,
    SyncPoint,
    Transfer,
)
from trainprof.analysis.summary.run import LEDGER_KEYS, System
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY, Attribution
from trainprof.analysis.timeline.timeline_part import TimelinePart

# On a device copies take time of the device.
_COPY_KEY: Final = KEY["transfer"]
# Autograd may call it on another thread.
_RECOMPUTE_KEY: Final = KEY["recompute"]


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The device that training uses.

    Attributes:
        timed: The one whose time is known, or None.
        devices: All, with their memory; None without any.
    """

    timed: Device | None
    devices: list[Device] | None
    transfers: list[Transfer]
    sync_points: list[SyncPoint]
    placements: list[Placement]
    found_syncs: FoundSyncs | None
    emptied_caches: list[EmptiedCache]
    out_of_memory: OutOfMemory | None


def overlap_of(run: Analysed) -> Overlap | None:
    """Returns the device's activity; None where devices were synchronized, or it is unknown."""
    if run.metadata.device() is None or run.synchronized() is not None:
        return None
    return device_overlap(run.process.details, run.timeline)


def device_part(
    run: Analysed,
    time: TimelinePart,
    overlap: Overlap | None,
    system: System | None,
    compiling: Coverage,
) -> DevicePart:
    """Returns a run's device part; `overlap` is from `overlap_of`."""
    timeline, metadata, details = run.timeline, run.metadata, run.process.details
    sites, window, kind = run.sites(), timeline.window, metadata.device()
    timed = held = None
    if overlap is not None:
        settled = (max(time.settled_ns, window.loop_start), window.loop_end)
        gpus = system.gpus if system is not None else []
        activity = overlap.activity
        driver = kernel_share(
            run.recording.gpu_lines, gpus, activity.index, settled, activity.first_ns
        )
        timed = _timed_device(overlap, time, str(kind).partition(":")[0], compiling, driver)
        held = held_back(overlap, details, settled[0])
    counted_until = {
        flag: (ns - run.origin_ns) / 1e9 for flag, ns in metadata.reads_counted_until().items()
    }
    return DevicePart(
        timed=timed,
        devices=with_memory(
            None if timed is None else [timed],
            details,
            timeline,
            kind=str(kind).partition(":")[0],
            warmup=time.steps.steady.warmup,
            is_part=run.part is not None,
        ),
        transfers=transfers(timeline.events, sites, overlap),
        sync_points=sync_points(timeline.events, sites, overlap, counted_until, held),
        placements=placements(timeline.events, sites) if kind is not None else [],
        found_syncs=found_syncs_of(details, sites),
        emptied_caches=[]
        if overlap is None
        else emptied_caches(details, timeline, time.attribution, sites, overlap.most),
        out_of_memory=out_of_memory_of(metadata, run.recording.manifest.get("cwd")),
    )


def _timed_device(
    overlap: Overlap,
    time: TimelinePart,
    kind: str,
    compiling: Coverage,
    driver: KernelShare | None,
) -> Device:
    activity, timeline, steady = overlap.activity, overlap.timeline, time.steps.steady
    idle = idle_of(overlap, time.attribution, steady, compiling, driver)
    times = _phase_times(overlap, time.attribution)
    return Device(
        index=activity.index,
        name=f"{kind}:{activity.index}",
        busy_share=list(idle.busy_share),
        idle_because=idle.because_s,
        per_step_s=times.of_steps(timeline.steps.ends, timeline.step_starts, steady.mask),
        queue_delay_s=_queue_delay_s(overlap),
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
        """Returns the mean of a steady step, of all steps without any."""
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
    """Innermost wins: recomputation in a backward is not backward."""
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
    """Returns the mean delay from a phase's launch to its start in the loop: low, high."""
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
