"""The steps of a saved run, read from its events: `summary.json` has no series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.device.activity import Overlap, device_overlap
from trainprof.analysis.run.ranks import rank_recordings
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import TrainingProcess, training_processes
from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.analysis.timeline.step_table import StepTable, attributed, step_table
from trainprof.analysis.timeline.timeline import Timeline, build_timeline
from trainprof.record.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Steps of the first training process, in order of time, in seconds.

    Attributes:
        steps: The number of all, with warm-up and starts of epochs.
        parts_s: Each steady step's time by ledger key.
        starts_s: Loader time at each epoch's border beyond steady steps.
    """

    steps: int
    steady_s: Floats
    parts_s: dict[str, Floats]
    steps_of_epochs: Int64
    starts_s: Floats


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of the first training process; without `device` its activity is unknown."""

    process: TrainingProcess
    timeline: Timeline
    steps: StepTable
    device: Overlap | None


def read_step_series(directory: RunDirectory) -> StepSeries | None:
    """Returns the steps of a run, None without its events or without steps."""
    recorded = read_recorded_steps(directory)
    return None if recorded is None else series_of(recorded.steps)


def series_of(steps: StepTable) -> StepSeries:
    steady = steps.steady.mask
    loading = [steps.per_step[key] for key in LOADER_KEYS if key in steps.per_step]
    loading_s = np.sum(loading, axis=0) / 1e9 if loading else np.zeros(len(steps))
    return StepSeries(
        steps=len(steps),
        steady_s=steps.wall_ns[steady] / 1e9,
        parts_s={key: ns[steady] / 1e9 for key, ns in steps.per_step.items()},
        steps_of_epochs=np.unique(steps.epoch_of[steps.epoch_of >= 0], return_counts=True)[1],
        starts_s=_beyond_steady(loading_s, steps),
    )


def _beyond_steady(part_s: Floats, steps: StepTable) -> Floats:
    """Sums up, by epoch, a part of unsteady steps beyond that of steady ones.

    A step after an evaluation within an epoch is not a start of it.
    """
    steady = steps.steady.mask
    borders = np.cumsum(steps.border)
    epochs, first, place = np.unique(steps.epoch_of, return_index=True, return_inverse=True)
    sums = np.zeros(len(epochs))
    if steady.any():
        is_left_out = steady | (borders > borders[first][place])
        np.add.at(sums, place, np.where(is_left_out, 0.0, part_s - part_s[steady].mean()))
    return sums[epochs >= 0]


def read_recorded_steps(directory: RunDirectory) -> RecordedSteps | None:
    """Returns the steps of a run, None without its events or without steps."""
    process = training_processes(first_recording(directory))[0]
    events = process.events
    if len(events) == 0:
        return None
    timeline = build_timeline(process, int(events.start[0]), int(events.end.max()))
    has_device = process.metadata.device() is not None
    device = device_overlap(process.details, timeline) if has_device else None
    # As the summary has them: waits for a device apart.
    waits = None if device is None else device.waits()
    attribution = attributed(timeline, process.metadata, waits)
    steps = step_table(timeline, attribution, process.metadata)
    return RecordedSteps(process, timeline, steps, device) if len(steps) else None


def first_recording(directory: RunDirectory) -> Recording:
    """Reads a run, of its first rank where each had its own trainprof."""
    recordings = [] if directory.manifest.exists() else rank_recordings(directory)
    return recordings[0] if recordings else read_recording(directory)
