"""The steps of a saved run one by one, read back from its events: `summary.json` has no series."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainprof.analysis.devices import meanwhile_of
from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.ledger import LOADER_KEYS, attribute
from trainprof.analysis.meanwhile import Meanwhile
from trainprof.analysis.ranks import rank_recordings
from trainprof.analysis.recording import Recording, read_recording
from trainprof.analysis.step_noise import Floats
from trainprof.analysis.step_table import StepTable, step_table
from trainprof.analysis.timeline import Timeline, build_timeline
from trainprof.analysis.training_process import TrainingProcess, training_processes
from trainprof.record.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Steps of the first training process, in order of time, in seconds.

    Attributes:
        steady_s: The steady ones, shape (n_steady,).
        parts_s: Ledger key to each steady step's time under it, shape (n_steady,).
        all_s: Every step, warm-up and starts of passes too, without evaluation; shape (n_steps,).
        starts_s: What each later pass took at its borders, beyond steady steps, shape (n,).
        later_steps: Of those passes.
        steps_of_passes: Steps of each pass, the last one maybe cut short, shape (n_passes,).
        pass_starts_s: As `starts_s`, of all passes; of the first one as far as its loaders took it,
            shape (n_passes,).
    """

    steady_s: Floats
    parts_s: dict[str, Floats]
    all_s: Floats
    starts_s: Floats
    later_steps: int
    steps_of_passes: Int64
    pass_starts_s: Floats


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of the first training process with all that they are taken from.

    Attributes:
        device: What it did meanwhile, None where that is not known, or there is none.
    """

    process: TrainingProcess
    timeline: Timeline
    steps: StepTable
    device: Meanwhile | None


def read_step_series(directory: RunDirectory) -> StepSeries | None:
    """Returns the steps of a run, None where its events are gone or tell of no step."""
    recorded = read_recorded_steps(directory)
    return None if recorded is None else series_of(recorded.steps)


def series_of(steps: StepTable) -> StepSeries:
    """Returns the series of a table's steps."""
    steady = steps.steady.mask
    all_s = steps.wall_ns / 1e9
    steady_s = all_s[steady]
    starts_s = _starts_s(all_s, steady, steps.paused, steps.epoch_of)
    seen = steps.epoch_of[steps.epoch_of >= 0]
    return StepSeries(
        steady_s=steady_s,
        parts_s={key: ns[steady] / 1e9 for key, ns in steps.per_step.items()},
        all_s=all_s,
        starts_s=starts_s,
        later_steps=int(np.count_nonzero(steps.epoch_of > 0)),
        steps_of_passes=np.unique(seen, return_counts=True)[1],
        pass_starts_s=np.concatenate([_first_start_s(steps), starts_s]),
    )


def _starts_s(all_s: Floats, steady: Bool, paused: Bool, epoch_of: Int64) -> Floats:
    """Sums up, pass by pass, what the steps that are no steady ones took beyond those.

    Those fed from a full buffer are shorter: what a start piled up is no gain of theirs. What we
    held up is no start's.
    """
    if not steady.any():
        return all_s[:0]
    beyond = np.where(steady | paused, 0.0, all_s - all_s[steady].mean())
    passes, place = np.unique(epoch_of, return_inverse=True)
    sums = np.zeros(len(passes))
    np.add.at(sums, place, beyond)
    return sums[passes > 0]


def _first_start_s(steps: StepTable) -> Floats:
    """Returns what loaders took in the first pass beyond steady steps: one number, or none.

    What else takes longer in first steps (code that is met for the first time) comes once in a
    run, and not with each pass.
    """
    is_first = steps.epoch_of == 0
    if not is_first.any() or not steps.steady.mask.any():
        return np.zeros(int(is_first.any()))
    told = [steps.per_step[key] for key in LOADER_KEYS if key in steps.per_step]
    steady = steps.steady.mask
    waits_s = np.sum(told, axis=0) / 1e9 if told else np.zeros(len(steps))
    beyond = waits_s[is_first & ~steady] - waits_s[steady].mean()
    return np.array([beyond.sum()])


def read_recorded_steps(directory: RunDirectory) -> RecordedSteps | None:
    """Returns the steps of a run, None where its events are gone or tell of no step."""
    process = training_processes(first_recording(directory))[0]
    events = process.events
    if len(events) == 0:
        return None
    timeline = build_timeline(
        events,
        process.facts,
        main_thread=process.main_thread,
        start=int(events.start[0]),
        end=int(events.end.max()),
    )
    attribution = attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=process.facts.device() is not None,
        graph_classes=process.facts.graph_classes(),
    )
    paused = None
    # As the summary has them: waits for a device apart, and without the steps that we held up.
    device = None if process.facts.device() is None else meanwhile_of(process.details, timeline)
    if device is not None:
        attribution = replace(attribution, device_waits=device.waits())
        paused = device.backlog.steps_of(timeline.steps.ends)
    steps = step_table(timeline, attribution, process.facts, paused)
    return RecordedSteps(process, timeline, steps, device) if len(steps) else None


def first_recording(directory: RunDirectory) -> Recording:
    """Reads a run; of one whose ranks each had a trainprof of its own, the first rank."""
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    return of_ranks[0] if of_ranks else read_recording(directory)
