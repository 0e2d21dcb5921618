"""How fast a trial trained on free data, and how fast its loader went alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.recorded_epoch import free_data
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.summary.levels import LEAST_GAIN, MANY_STEPS
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.iterations import LOADER_CALLS
from trainprof.analysis.timeline.steady_state import CHECKPOINT, MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_series import RecordedSteps, first_recording
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

# A loader's first batches do not show its pace: those that workers prepared all at once at their
# start, and the same number again until they take turns.
_START: Final = 2
_FIRST_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class FreeSteps:
    """Steps of a trial on free data, without what its copies of batches cost them.

    Attributes:
        table: Those on free data; of their parts it has saving checkpoints alone.
        first: The number of steps before.
        is_least: They may be faster still: whether a device worked during much of the copying is
            unknown, and none of that is taken out.
    """

    table: StepTable
    first: int
    is_least: bool


def free_steps(recorded: RecordedSteps) -> FreeSteps | None:
    """Returns the steps on free data, None without any.

    Copies of batches inside the calls of free loaders are taken out of them, as far as a device's
    work did not hide them.
    """
    steps = recorded.steps
    free = free_data(recorded.timeline, recorded.process.details)
    if free is None or free.first_step is None:
        return None
    chosen = slice(free.first_step, None)
    surely, maybe = (ns[chosen] for ns in _copying(recorded, free.loaders))
    left = np.maximum(steps.wall_ns[chosen] - surely, 0)
    table = StepTable.of(
        left,
        {key: ns[chosen] for key, ns in steps.per_step.items() if key == CHECKPOINT},
        epoch_of=steps.epoch_of[chosen],
        border=steps.border[chosen],
        # No worker has anything ready, and none takes turns.
        buffered=np.zeros(len(left), dtype=bool),
        cycle=1,
    )
    steady = table.steady.mask
    unknown_ns = int((maybe - surely)[steady].sum())
    is_least = unknown_ns > LEAST_GAIN * int(left[steady].sum())
    return FreeSteps(table, free.first_step, is_least)


def free_pace(table: StepTable) -> Pace | None:
    """Returns the pace of steady steps on free data, without the few that save checkpoints."""
    return _pace(table.plain_s())


def _copying(recorded: RecordedSteps, loaders: Collection[int]) -> tuple[Int64, Int64]:
    """Returns what the copies of batches cost each step, ns: surely, and at most.

    On a device no more than the time for which it was idle.
    """
    timeline, device = recorded.timeline, recorded.device
    inside = _inside_calls(timeline, loaders)
    if recorded.process.metadata.device() is None:
        return inside, inside
    if device is None:
        return np.zeros_like(inside), inside
    starts, ends = timeline.step_starts, timeline.steps.ends
    surely, maybe = (
        np.clip(recorded.steps.wall_ns - busy.inside_ns(starts, ends), 0, inside)
        for busy in (device.most, device.least)
    )
    return surely, maybe


def _inside_calls(timeline: Timeline, loaders: Collection[int]) -> Int64:
    events, ends = timeline.events, timeline.steps.ends
    calls = events.is_kind(*LOADER_CALLS) & np.isin(events.site, list(loaders))
    calls &= ~timeline.nesting.inside(calls)  # a reset inside a creation counts once
    step = np.searchsorted(ends, events.start[calls], side="right")
    length = (events.end - events.start)[calls]
    is_in_step = step < len(ends)
    total = np.bincount(step[is_in_step], weights=length[is_in_step], minlength=len(ends))
    return total.astype(np.int64)


def fewest_alone(ahead: int) -> int:
    """Returns how many batches of a loader alone show its pace."""
    return _skipped(ahead) + MIN_STEADY_STEPS


def _skipped(ahead: int) -> int:
    return _START * ahead + _FIRST_BATCHES


def alone_pace(directory: RunDirectory, sites: Collection[str] = ()) -> Pace | None:
    """Returns the seconds from batch to batch of a loader that ran alone, None for too few.

    Without the start of each epoch; of short epochs only without that of the first.
    Of several loaders at the `sites` (anywhere without) the one with most batches counts.
    """
    recording = first_recording(directory)
    process = training_processes(recording)[0]
    events, metadata = process.events, process.metadata
    nexts = events.is_kind(Kind.LOADER_NEXT)
    names = metadata.sites(recording.manifest.get("cwd"))
    candidates = [
        (int(np.count_nonzero(nexts & (events.site == loader))), loader)
        for loader in np.unique(events.site[nexts]).tolist()
        if not sites or names[integer(metadata.loader(loader).get("site")) or 0] in sites
    ]
    if not candidates:
        return None
    loader = max(candidates, key=lambda pair: pair[0])[1]
    batches = events.where(nexts & (events.site == loader))
    skip = _skipped(metadata.batches_ahead(loader))
    number = batches.value.astype(np.int64)  # in its epoch, from 1
    apart = np.diff(batches.end) / 1e9
    in_epoch = apart[(np.diff(number) == 1) & (number[1:] > skip)]
    seconds = in_epoch if len(in_epoch) >= MANY_STEPS else apart[max(skip - 1, 0) :]
    workers = integer(metadata.loader(loader).get("num_workers")) or 1
    return _pace(seconds, cycle=max(1, min(workers, len(seconds))))


def _pace(seconds: Floats, *, cycle: int = 1) -> Pace | None:
    if len(seconds) == 0 or seconds.mean() <= 0:
        return None
    return Pace(float(seconds.mean()), seconds, cycle)
