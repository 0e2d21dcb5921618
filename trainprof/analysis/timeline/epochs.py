"""LoaderIterations as epochs, and evaluation summed up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.summary.run import Epoch, Evaluation
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
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import ForwardFlag, Kind

# A loop that makes a new iterator for each batch has as many epochs as batches.
MAX_EPOCHS_LISTED: Final = 10_000
_NEVER: Final = np.iinfo(np.int64).max


def epochs_of(timeline: Timeline, *, origin_ns: int, threshold_ns: int) -> list[Epoch]:
    """Lists the epochs of the loaders that feed training, and those that evaluate, in order.

    Args:
        threshold_ns: Waits from here on are slow.
    """
    loaders, calls, on_thread = timeline.loaders, timeline.all_events, timeline.on_thread
    learning, step_ends = timeline.learning(), timeline.steps.ends
    epochs_by_start: list[tuple[int, Epoch]] = []
    feeding = {p.loader for p in feeders(loaders)}
    begins = epoch_starts(loaders)
    beside = _waits_beside(loaders, feeding, calls, on_thread)
    for p, is_here in zip(loaders, on_thread.tolist(), strict=True):
        listed = p.of_stage(EVALUATION) & is_here
        if p.loader in feeding:
            listed |= p.trained()
        if listed.any():
            later = is_used_later(p, learning) if is_here else p.trained()
            ends = _epoch_ends(p, later, begins, step_ends)
            # What an iterator took that was made ahead of the loop is no part of an epoch.
            made_ahead = p.trained() & (p.start < timeline.window.loop_start) & is_here
            epochs_here = _listed(p, listed, made_ahead, ends, timeline, origin_ns, threshold_ns)
            if p.loader in feeding and is_here:
                epochs_here = [_with_waits(pair, beside) for pair in epochs_here]
            epochs_by_start += epochs_here
    epochs_by_start.sort(key=lambda pair: pair[0])
    counters: dict[str, int] = {}
    epochs = []
    for _, epoch in epochs_by_start[:MAX_EPOCHS_LISTED]:
        index = counters.get(epoch.stage, 0)
        counters[epoch.stage] = index + 1
        epochs.append(_numbered(epoch, index))
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
    waits = calls.where(
        (calls.site == p.loader) & calls.is_kind(Kind.LOADER_NEXT) & (calls.value > 1)
    )
    number = np.searchsorted(p.start, waits.start, side="right") - 1
    length = waits.end - waits.start
    slow = length >= threshold_ns
    slow_count = np.bincount(number[slow], minlength=len(p))
    slow_total = np.bincount(number[slow], weights=length[slow], minlength=len(p))
    steps = np.searchsorted(step_ends, ends, side="right") - np.searchsorted(
        step_ends, begins, side="right"
    )
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
                steps=int(steps[i]),
                start_s=float((begins[i] - origin_ns) / 1e9),
                loader_start_s=0.0 if made_ahead[i] else float(p.init_ns[i] / 1e9),
            ),
        )
        for i in np.flatnonzero(listed).tolist()
    ]


def _waits_beside(
    loaders: list[LoaderIterations], feeding: Collection[int], calls: Events, on_thread: Bool
) -> Events:
    """Picks the calls for batches of loaders that training uses alongside those whose epochs count.

    Without those inside another call for a batch: a loader in a dataset.
    """
    training = [
        p.loader
        for p, is_here in zip(loaders, on_thread.tolist(), strict=True)
        if is_here and p.role == TRAINING
    ]
    asked = calls.where(calls.is_kind(Kind.LOADER_NEXT) & np.isin(calls.site, training))
    asked = asked.where(np.argsort(asked.start, kind="stable"))
    ends_before = np.maximum.accumulate(np.append(0, asked.end))[:-1]
    return asked.where((asked.start >= ends_before) & ~np.isin(asked.site, list(feeding)))


def _with_waits(pair: tuple[int, Epoch], beside: Events) -> tuple[int, Epoch]:
    """Adds what training waited meanwhile for the loaders beside."""
    start, epoch = pair
    if epoch.stage != TRAINING:
        return pair
    end = start + round(epoch.seconds * 1e9)
    inside = beside.where((beside.start >= start) & (beside.start < end))
    is_first = inside.value <= 1
    length_s = (inside.end - inside.start) / 1e9
    first_s = float(length_s[is_first].sum())
    waited_s = epoch.data_wait_s + float(length_s[~is_first].sum())
    if first_s:
        epoch = replace(epoch, first_batch_s=(epoch.first_batch_s or 0.0) + first_s)
    return start, replace(epoch, data_wait_s=waited_s)


def _epoch_ends(p: LoaderIterations, is_used_later: Bool, begins: Int64, step_ends: Int64) -> Int64:
    """Ends of epochs; those used later reach to the end of the last step before the next begins."""
    if len(step_ends) == 0:
        return p.end
    nexts = np.append(begins, _NEVER)[np.searchsorted(begins, p.start, side="right")]
    nexts = np.minimum(nexts, np.append(p.start[1:], _NEVER))
    last = np.searchsorted(step_ends, nexts, side="right") - 1
    reach = np.where(last >= 0, step_ends[np.maximum(last, 0)], 0)
    return np.where(is_used_later, np.maximum(p.end, reach), p.end)


def _numbered(epoch: Epoch, index: int) -> Epoch:
    return replace(epoch, index=index)


def evaluation_of(timeline: Timeline) -> Evaluation:
    """Sums up evaluation by the training thread's epochs; its seconds are those of the ledger.

    An iterator that is asked for a few batches at a time makes an epoch each time.
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
    """Returns what of evaluation's forwards, by their time, has gradients for nothing."""
    events, top = timeline.events, timeline.nesting.parent < 0
    inside = within(timeline.segments, events.start)
    forward = top & inside & events.is_kind(Kind.FORWARD)
    if (inside & events.is_kind(Kind.BACKWARD)).any():
        return 0.0  # it takes gradients itself: forces of a potential, an attack
    length = (events.end - events.start)[forward]
    is_grad = (events.flags[forward] & ForwardFlag.GRAD) > 0
    return float(length[is_grad].sum() / length.sum()) if length.any() else None
