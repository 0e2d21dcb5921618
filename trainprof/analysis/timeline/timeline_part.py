"""The training thread's time in a summary: ledger, steps, epochs, checkpoints, outliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.machine.system import samples_between
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.run import Epoch, Evaluation, Ledger
from trainprof.analysis.timeline.checkpoints import Checkpoints, checkpoints_of
from trainprof.analysis.timeline.epochs import epochs_of, evaluation_of
from trainprof.analysis.timeline.ledger import (
    Attribution,
    DeviceWaits,
    attribute,
    ledger,
    loop_seconds,
    within,
)
from trainprof.analysis.timeline.steady_state import Outliers, outliers
from trainprof.analysis.timeline.step_table import StepTable, step_table
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind

_OLDEST_GENERATION: Final = 2


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """Where the training thread's time went.

    Attributes:
        attribution: Of its events to keys of the ledger.
        account: The ledger of the whole run.
        spent_s: Seconds per ledger key inside the training phase.
        checkpoints: What was saved and loaded in the training phase.
        settled_ns: When warm-up was over; the first step is always part of it.
        backwards: Runs of the autograd engine in training, a closure's too.
        full_collections: How often the garbage collector walked all objects in training.
        clips_gradients: By torch.nn.utils.
    """

    attribution: Attribution
    account: Ledger
    spent_s: dict[str, float]
    steps: StepTable
    epochs: list[Epoch]
    evaluation: Evaluation
    checkpoints: Checkpoints
    outliers: Outliers
    settled_ns: int
    backwards: int
    full_collections: int
    clips_gradients: bool


def timeline_part(run: Analysed, waits: DeviceWaits | None) -> TimelinePart:
    """Returns the account of a run's training thread.

    Args:
        run: The run.
        waits: When its device was waited for; None where nothing tells.
    """
    timeline, metadata, recording = run.timeline, run.metadata, run.recording
    events, window = timeline.events, timeline.window
    attribution = attribute(
        events,
        timeline.nesting,
        timeline.segments,
        has_device=metadata.device() is not None,
        graph_classes=metadata.graph_classes(),
    )
    if waits is not None:
        attribution = replace(attribution, device_waits=waits)
    steps = step_table(timeline, attribution, metadata)
    return TimelinePart(
        attribution=attribution,
        account=ledger(events, attribution, window),
        spent_s=loop_seconds(events, attribution, window),
        steps=steps,
        epochs=epochs_of(
            timeline, origin_ns=run.origin_ns, threshold_ns=int(run.wait_threshold_s() * 1e9)
        ),
        evaluation=evaluation_of(timeline),
        checkpoints=checkpoints_of(
            events,
            timeline.nesting,
            run.sites(),
            timeline.segments,
            (window.loop_start, window.loop_end),
        ),
        outliers=outliers(
            steps.wall_ns,
            timeline.step_starts,
            steps.per_step,
            candidates=steps.candidates,
            epoch_of=steps.epoch_of,
            origin_ns=run.origin_ns,
            samples_between=lambda start, end: samples_between(
                recording.host_lines, recording.process_lines, start, end
            ),
        ),
        settled_ns=_settled_ns(timeline, steps),
        backwards=_backwards(timeline),
        full_collections=_full_collections(timeline),
        clips_gradients=bool(events.is_kind(Kind.CLIP_GRADIENTS).any()),
    )


def _settled_ns(timeline: Timeline, steps: StepTable) -> int:
    last = min(max(steps.steady.warmup, 1), len(steps)) - 1
    return int(timeline.steps.ends[last]) if last >= 0 else timeline.window.start


def _backwards(timeline: Timeline) -> int:
    """Counts runs of the autograd engine; one inside another is part of it."""
    events, parent = timeline.events, timeline.nesting.parent
    is_run = events.is_kind(Kind.BACKWARD)
    is_inside = (parent >= 0) & is_run[np.maximum(parent, 0)]
    begun = events.start >= timeline.window.loop_start
    counted = is_run & ~is_inside & begun & ~within(timeline.segments, events.start)
    return int(counted.sum())


def _full_collections(timeline: Timeline) -> int:
    events, window = timeline.events, timeline.window
    is_full = events.is_kind(Kind.GC) & (events.value == _OLDEST_GENERATION)
    return int((is_full & (events.start >= window.loop_start)).sum())
