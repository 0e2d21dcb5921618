"""Steps, iterations, epochs, samples: the summary's `training`."""

from __future__ import annotations

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.loading.loader_steps import epoch_starts, feeding_passes
from trainprof.analysis.loading.loaders import samples_of
from trainprof.analysis.loading.steps_of_loader import are_all_fed
from trainprof.analysis.pipeline.free_data import FreeData
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.run import Training
from trainprof.analysis.timeline.events import Bool
from trainprof.analysis.timeline.iterations import Passes
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind


def training_of(
    timeline: Timeline,
    steps: StepTable,
    samples: int | None,
    metadata: Metadata,
    free: FreeData | None = None,
) -> Training:
    """Returns what was trained and how fast.

    Args:
        timeline: Of the process that trains.
        steps: Its.
        samples: As `trained_samples` counts them; in steps that no loader feeds nobody does.
        metadata: Its.
        free: What was free; nobody counts the samples of batches that are not made.
    """
    iterations = _iterations(timeline, _feeding(timeline))
    if free is not None or (iterations < len(steps) and not are_all_fed(timeline)):
        samples = None
    steady = steps.steady.mask
    wall = steps.wall_ns[steady]
    per_step = None
    if len(wall):
        per_step = {key: float(ns[steady].mean() / 1e9) for key, ns in steps.per_step.items()}
        per_step.update(evaluation=0.0, startup=0.0, shutdown=0.0)
    loop_ns = timeline.window.loop_end - timeline.window.loop_start
    trained_s = (loop_ns - timeline.evaluated_in_loop_ns()) / 1e9
    return Training(
        steps=len(steps),
        iterations=iterations,
        epochs=len(epoch_starts(timeline.passes)),
        samples=samples,
        samples_per_s=samples / trained_s if samples and trained_s > 0 else None,
        step_source=timeline.steps.source,
        step_s=statistics_s(wall),
        per_step_s=per_step,
        warmup_excluded=steps.steady.warmup,
        steady_steps=len(wall),
        steady_s=float(wall.sum() / 1e9),
        without_evaluation_s=trained_s,
        free_from_step=free.first_step if free is not None else None,
    )


def _feeding(timeline: Timeline) -> list[tuple[Passes, Bool]]:
    return feeding_passes(timeline.passes, timeline.learning(), timeline.steps.ends)


def trained_samples(timeline: Timeline, fetches: FetchTable, metadata: Metadata) -> int | None:
    """Counts the samples of all iterations; None where one of the loaders does not tell."""
    total = 0
    for p, counted in _feeding(timeline):
        if not counted.any():
            continue
        samples = samples_of(p, counted, timeline.all_events, fetches, metadata)
        if samples is None:
            return None
        total += samples
    return total or None


def _iterations(timeline: Timeline, feeding: list[tuple[Passes, Bool]]) -> int:
    """Batches of the feeding loaders; without one, backwards of a single optimizer, or steps."""
    events = timeline.events
    if feeding:
        return sum(int(p.batches[counted].sum()) for p, counted in feeding)
    steps = len(timeline.steps.ends)
    optimizers = np.unique(events.site[events.is_kind(Kind.OPTIMIZER_STEP)])
    if timeline.steps.source != "optimizer" or len(optimizers) > 1:
        return steps
    backward = events.is_kind(Kind.BACKWARD)
    # Those of a closure are run again for one and the same batch.
    outermost = backward & (timeline.nesting.parent < 0) & ~within(timeline.segments, events.start)
    return max(steps, int(outermost.sum()))
