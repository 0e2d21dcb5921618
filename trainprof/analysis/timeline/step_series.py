"""The steps of a saved run one by one, read back from its events: `summary.json` has no series."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainprof.analysis.device.activity import Overlap, device_overlap
from trainprof.analysis.loading.recreated_loaders import BuiltLoaders
from trainprof.analysis.run.ranks import rank_recordings
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import TrainingProcess, training_processes
from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.ledger import LOADER_KEYS, attribute
from trainprof.analysis.timeline.step_table import StepTable, step_table
from trainprof.analysis.timeline.timeline import Timeline, build_timeline
from trainprof.record.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Steps of the first training process, in order of time, in seconds.

    Attributes:
        steps: Of all, warm-up and starts of epochs too.
        steady_s: The steady ones, shape (n_steady,).
        parts_s: Ledger key to each steady step's time under it, shape (n_steady,).
        steps_of_epochs: Steps of each epoch, the last one maybe cut short, shape (n_epochs,).
        starts_s: What loaders took at epoch borders beyond steady steps, shape (n_epochs,).
    """

    steps: int
    steady_s: Floats
    parts_s: dict[str, Floats]
    steps_of_epochs: Int64
    starts_s: Floats


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of the first training process with all that they are taken from.

    Attributes:
        device: What it did meanwhile, None where that is not known, or there is none.
    """

    process: TrainingProcess
    timeline: Timeline
    steps: StepTable
    device: Overlap | None


def read_step_series(directory: RunDirectory) -> StepSeries | None:
    """Returns the steps of a run, None where its events are gone or tell of no step."""
    recorded = read_recorded_steps(directory)
    return None if recorded is None else series_of(recorded.steps)


def series_of(steps: StepTable) -> StepSeries:
    """Returns the series of a table's steps."""
    steady = steps.steady.mask
    return StepSeries(
        steps=len(steps),
        steady_s=steps.wall_ns[steady] / 1e9,
        parts_s={key: ns[steady] / 1e9 for key, ns in steps.per_step.items()},
        steps_of_epochs=np.unique(steps.epoch_of[steps.epoch_of >= 0], return_counts=True)[1],
        starts_s=_beyond_steady(_loading_s(steps), steps),
    )


def _loading_s(steps: StepTable) -> Floats:
    """Returns what loaders took of each step: waits, their starts and ends."""
    parts = [steps.per_step[key] for key in LOADER_KEYS if key in steps.per_step]
    total_s: Floats = np.sum(parts, axis=0) / 1e9 if parts else np.zeros(len(steps))
    return total_s


def _beyond_steady(part_s: Floats, steps: StepTable) -> Floats:
    """Sums up, epoch by epoch, a part of the steps that are no steady ones beyond that of those.

    Those fed from a full buffer wait less: what a start piled up is no gain of theirs. What comes
    behind an evaluation in the midst of an epoch is no start of it.
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
    """Returns the steps of a run, None where its events are gone or tell of no step."""
    process = training_processes(first_recording(directory))[0]
    events = process.events
    if len(events) == 0:
        return None
    timeline = build_timeline(
        events,
        process.metadata,
        BuiltLoaders.of(process.details),
        main_thread=process.main_thread,
        start=int(events.start[0]),
        end=int(events.end.max()),
    )
    attribution = attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=process.metadata.device() is not None,
        graph_classes=process.metadata.graph_classes(),
    )
    # As the summary has them: waits for a device apart.
    device = (
        None if process.metadata.device() is None else device_overlap(process.details, timeline)
    )
    if device is not None:
        attribution = replace(attribution, device_waits=device.waits())
    steps = step_table(timeline, attribution, process.metadata)
    return RecordedSteps(process, timeline, steps, device) if len(steps) else None


def first_recording(directory: RunDirectory) -> Recording:
    """Reads a run; of one whose ranks each had a trainprof of its own, the first rank."""
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    return of_ranks[0] if of_ranks else read_recording(directory)
