"""The training thread's time in a summary: ledger, steps, epochs, checkpoints, outliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.machine.system import samples_between
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.run import Epoch, Evaluation, Ledger
from trainprof.analysis.timeline.checkpoints import Checkpoints, checkpoints_of
from trainprof.analysis.timeline.evaluation import evaluated_stretches, evaluation_ns
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    TRAINING,
    LoaderIterations,
    epoch_starts,
    feeders,
    is_used_later,
)
from trainprof.analysis.timeline.ledger import (
    Attribution,
    ledger,
    loop_seconds,
    within,
)
from trainprof.analysis.timeline.steady_state import Outliers, outliers
from trainprof.analysis.timeline.step_table import StepTable, step_table
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import ForwardFlag, Kind

_OLDEST_GENERATION: Final = 2
# With a new iterator for each batch, each batch is an epoch.
MAX_EPOCHS_LISTED: Final = 10_000
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """Where the training thread's time went.

    Attributes:
        account: The ledger of the whole run.
        spent_s: Seconds per ledger key inside the training phase.
        settled_ns: When warm-up ended; the first step is always part of it.
        backwards: Runs of the autograd engine in training, with closures.
        full_collections: Full garbage collections in training.
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


def timeline_part(run: Analysed, attribution: Attribution) -> TimelinePart:
    """Returns the account of a run's training thread."""
    timeline, metadata, recording = run.timeline, run.metadata, run.recording
    events, window = timeline.events, timeline.window
    steps = step_table(timeline, attribution, metadata)
    is_full = events.is_kind(Kind.GC) & (events.value == _OLDEST_GENERATION)
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
        full_collections=int((is_full & (events.start >= window.loop_start)).sum()),
        clips_gradients=bool(events.is_kind(Kind.CLIP_GRADIENTS).any()),
    )


def _settled_ns(timeline: Timeline, steps: StepTable) -> int:
    last = min(max(steps.steady.warmup, 1), len(steps)) - 1
    return int(timeline.steps.ends[last]) if last >= 0 else timeline.window.start


def _backwards(timeline: Timeline) -> int:
    """Counts runs of the autograd engine; one inside another is part of it."""
    events, parent = timeline.events, timeline.nesting.parent
    is_run = events.is_kind(Kind.BACKWARD)
    is_inside = (parent >= 0) & is_run[parent]
    begun = events.start >= timeline.window.loop_start
    counted = is_run & ~is_inside & begun & ~within(timeline.segments, events.start)
    return int(counted.sum())


def epochs_of(timeline: Timeline, *, origin_ns: int, threshold_ns: int) -> list[Epoch]:
    """Lists the epochs of the loaders that feed training, and those that evaluate, in order."""
    loaders, on_thread = timeline.loaders, timeline.on_thread
    learning, step_ends = timeline.learning(), timeline.steps.ends
    epochs_by_start: list[tuple[int, Epoch]] = []
    feeding = {p.loader for p in feeders(loaders)}
    begins = epoch_starts(loaders)
    concurrent = _concurrent_waits(timeline, feeding)
    for p, is_here in zip(loaders, on_thread.tolist(), strict=True):
        listed = p.of_stage(EVALUATION) & is_here
        if p.loader in feeding:
            listed |= p.trained()
        if listed.any():
            later = is_used_later(p, learning) if is_here else p.trained()
            ends = _epoch_ends(p, later, begins, step_ends)
            # An iterator created before the loop is not a part of an epoch.
            made_ahead = p.trained() & (p.start < timeline.window.loop_start) & is_here
            epochs_here = _listed(p, listed, made_ahead, ends, timeline, origin_ns, threshold_ns)
            if p.loader in feeding and is_here:
                epochs_here = [_with_waits(pair, concurrent) for pair in epochs_here]
            epochs_by_start += epochs_here
    epochs_by_start.sort(key=lambda pair: pair[0])
    counters: Counter[str] = Counter()
    epochs = []
    for _, epoch in epochs_by_start[:MAX_EPOCHS_LISTED]:
        epochs.append(replace(epoch, index=counters[epoch.stage]))
        counters[epoch.stage] += 1
    return epochs


def _listed(
    p: LoaderIterations,
    listed: Bool,
    made_ahead: Bool,
    ends: Int64,
    timeline: Timeline,
    origin_ns: int,
    threshold_ns: int,
) -> list[tuple[int, Epoch]]:
    calls, step_ends = timeline.all_events, timeline.steps.ends
    begins = np.where(made_ahead, timeline.window.loop_start, p.start)
    evaluated = evaluation_ns(p, timeline.events, timeline.segments)
    took = np.where(p.of_stage(EVALUATION) & (evaluated > 0), evaluated, ends - begins)
    waits = calls.where(calls.is_kind(Kind.LOADER_NEXT) & (calls.site == p.loader))
    number = p.number_at(waits.start)
    length = waits.end - waits.start
    slow = length >= threshold_ns
    slow_count = np.bincount(number[slow], minlength=len(p))
    slow_total = np.bincount(number[slow], weights=length[slow], minlength=len(p))
    last, first = (np.searchsorted(step_ends, times, side="right") for times in (ends, begins))
    return [
        (
            int(begins[i]),
            Epoch(
                index=0,
                stage=str(p.stage[i]),
                loader=p.loader,
                seconds=float(took[i] / 1e9),
                data_wait_s=float(p.wait_ns[i] / 1e9),
                first_batch_s=float(p.first_ns[i] / 1e9) if p.first_ns[i] >= 0 else None,
                iterations=int(p.batches[i]),
                slow_batches=int(slow_count[i]),
                slow_total_s=float(slow_total[i] / 1e9),
                slow_excess_s=float((slow_total[i] - threshold_ns * slow_count[i]) / 1e9),
                steps=int(last[i] - first[i]),
                start_s=float((begins[i] - origin_ns) / 1e9),
                loader_start_s=0.0 if made_ahead[i] else float(p.init_ns[i] / 1e9),
            ),
        )
        for i in np.flatnonzero(listed).tolist()
    ]


def _concurrent_waits(timeline: Timeline, feeding: Collection[int]) -> Events:
    """Returns requests for batches of loaders used alongside those whose epochs count.

    Without requests inside another one: a loader in a dataset.
    """
    calls = timeline.all_events
    training = [p.loader for p in timeline.loaders_here() if p.role == TRAINING]
    asked = calls.where(calls.is_kind(Kind.LOADER_NEXT) & np.isin(calls.site, training))
    asked = asked.where(np.argsort(asked.start, kind="stable"))
    ends_before = np.maximum.accumulate(np.append(0, asked.end))[:-1]
    return asked.where((asked.start >= ends_before) & ~np.isin(asked.site, list(feeding)))


def _with_waits(pair: tuple[int, Epoch], concurrent: Events) -> tuple[int, Epoch]:
    start, epoch = pair
    if epoch.stage != TRAINING:
        return pair
    end = start + round(epoch.seconds * 1e9)
    inside = concurrent.where((concurrent.start >= start) & (concurrent.start < end))
    is_first = inside.value <= 1
    length_s = (inside.end - inside.start) / 1e9
    first_s = float(length_s[is_first].sum())
    waited_s = epoch.data_wait_s + float(length_s[~is_first].sum())
    if first_s:
        epoch = replace(epoch, first_batch_s=(epoch.first_batch_s or 0.0) + first_s)
    return start, replace(epoch, data_wait_s=waited_s)


def _epoch_ends(p: LoaderIterations, is_used_later: Bool, begins: Int64, step_ends: Int64) -> Int64:
    """Ends of epochs; those learnt from later end with the last step before the next begins."""
    if len(step_ends) == 0:
        return p.end
    nexts = np.append(begins, _NEVER)[np.searchsorted(begins, p.start, side="right")]
    nexts = np.minimum(nexts, np.append(p.start[1:], _NEVER))
    last = np.searchsorted(step_ends, nexts, side="right") - 1
    reach = np.where(last >= 0, step_ends[np.maximum(last, 0)], 0)
    return np.where(is_used_later, np.maximum(p.end, reach), p.end)


def evaluation_of(timeline: Timeline) -> Evaluation:
    """Sums up evaluation by the training thread's epochs; its seconds are those of the ledger.

    An iterator that yields a few batches at a time counts as an epoch each time.
    """
    batches = waited = first = 0
    segments = timeline.segments
    begins = [np.empty(0, dtype=np.int64)]
    ids = []
    for p in timeline.loaders_here():
        mask = p.of_stage(EVALUATION)
        if not mask.any():
            continue
        ids.append(p.loader)
        batches += int(p.batches[mask].sum())
        number, stretch = evaluated_stretches(p, timeline.events, segments)
        whole = p.start[mask & (np.bincount(number, minlength=len(p)) == 0)]
        begins += [segments[stretch, 0], whole]
        waited += int(p.wait_ns[mask].sum())
        first += int(np.maximum(p.first_ns[mask], 0).sum())
    started = np.concatenate(begins)
    started = started if len(started) else segments[:, 0]
    window = timeline.window
    in_training = (started >= window.loop_start) & (started < window.loop_end)
    return Evaluation(
        iterations=batches,
        passes=len(started),
        seconds=float((segments[:, 1] - segments[:, 0]).sum() / 1e9),
        data_wait_s=waited / 1e9,
        first_batch_s=first / 1e9,
        loaders=ids,
        in_training_s=timeline.evaluated_in_loop_ns() / 1e9,
        passes_in_training=int(in_training.sum()),
        with_gradients_share=_with_gradients_share(timeline),
    )


def _with_gradients_share(timeline: Timeline) -> float | None:
    """Returns the share of evaluation's forwards, by time, with needless gradients."""
    events, top = timeline.events, timeline.nesting.parent < 0
    inside = within(timeline.segments, events.start)
    forward = top & inside & events.is_kind(Kind.FORWARD)
    if (inside & events.is_kind(Kind.BACKWARD)).any():
        return 0.0  # it computes gradients itself: forces of a potential, an attack
    length = events.end[forward] - events.start[forward]
    is_grad = (events.flags[forward] & ForwardFlag.GRAD) > 0
    return float(length[is_grad].sum() / length.sum()) if length.any() else None
