"""Passes as epochs, and evaluation summed up."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.events import Bool, Events, Int64
from trainprof.analysis.passes import EVALUATION, TRAINING, Passes
from trainprof.analysis.summary import Epoch, Evaluation
from trainprof.record.schema import Kind

# A loop that makes a new iterator for each batch has as many passes as batches.
MAX_EPOCHS_LISTED: Final = 10_000


def epochs_of(
    passes: list[Passes],
    calls: Events,
    *,
    origin_ns: int,
    threshold_ns: int,
    step_ends: Int64,
    feeder: int | None,
    on_thread: Bool,
) -> list[Epoch]:
    """Lists the passes of the loader that feeds training, and those that evaluate, in order.

    Args:
        passes: Of all loaders.
        calls: All loaders' events.
        origin_ns: Start of the run.
        threshold_ns: Waits from here on are slow.
        step_ends: Ends of steps, ns.
        feeder: Id of the loader that feeds training, or None.
        on_thread: Per loader of `passes`: consumed by the training thread.
    """
    found: list[tuple[int, Epoch]] = []
    for p, is_here in zip(passes, on_thread.tolist(), strict=True):
        listed = p.of_stage(EVALUATION) & is_here
        if p.loader == feeder:
            listed |= p.trained()
        if listed.any():
            found += _listed(p, listed, calls, origin_ns, threshold_ns, step_ends)
    found.sort(key=lambda pair: pair[0])
    counters: dict[str, int] = {}
    epochs = []
    for _, epoch in found[:MAX_EPOCHS_LISTED]:
        index = counters.get(epoch.stage, 0)
        counters[epoch.stage] = index + 1
        epochs.append(_numbered(epoch, index))
    return epochs


def _listed(
    p: Passes,
    listed: Bool,
    calls: Events,
    origin_ns: int,
    threshold_ns: int,
    step_ends: Int64,
) -> list[tuple[int, Epoch]]:
    waits = calls.where(
        (calls.site == p.loader) & calls.is_kind(Kind.LOADER_NEXT) & (calls.value > 1)
    )
    number = np.searchsorted(p.start, waits.start, side="right") - 1
    length = waits.end - waits.start
    slow = length >= threshold_ns
    slow_count = np.bincount(number[slow], minlength=len(p))
    slow_total = np.bincount(number[slow], weights=length[slow], minlength=len(p))
    ends = _pass_ends(p, step_ends)
    steps = np.searchsorted(step_ends, ends, side="right") - np.searchsorted(step_ends, p.start)
    return [
        (
            int(p.start[i]),
            Epoch(
                index=0,
                stage=str(p.stage[i]),
                loader=p.loader,
                seconds=float((ends[i] - p.start[i]) / 1e9),
                data_wait_s=float(p.wait_ns[i] / 1e9),
                first_batch_s=float(p.first_ns[i] / 1e9) if p.first_ns[i] >= 0 else None,
                iterations=int(p.batches[i]),
                slow_batches=int(slow_count[i]),
                slow_total_s=float(slow_total[i] / 1e9),
                slow_excess_s=float((slow_total[i] - threshold_ns * slow_count[i]) / 1e9),
                steps=int(steps[i]),
                start_s=float((p.start[i] - origin_ns) / 1e9),
            ),
        )
        for i in np.flatnonzero(listed).tolist()
    ]


def _pass_ends(p: Passes, step_ends: Int64) -> Int64:
    """Ends of passes; one left without StopIteration reaches to the end of its last step."""
    nexts = np.append(p.start[1:], np.iinfo(np.int64).max)
    if len(step_ends) == 0:
        return p.end
    last = np.searchsorted(step_ends, nexts) - 1
    reach = np.where(last >= 0, step_ends[np.maximum(last, 0)], 0)
    open_training = ~p.is_ended & (p.stage == TRAINING)
    return np.where(open_training, np.maximum(p.end, reach), p.end)


def _numbered(epoch: Epoch, index: int) -> Epoch:
    values = {name: getattr(epoch, name) for name in Epoch.__slots__}
    return Epoch(**{**values, "index": index})


def evaluation_of(passes: list[Passes], segments: Int64) -> Evaluation:
    """Sums up evaluation by the training thread's passes; its seconds are those of the ledger."""
    batches = count = waited = 0
    ids = []
    for p in passes:
        mask = p.of_stage(EVALUATION)
        if not mask.any():
            continue
        ids.append(p.loader)
        batches += int(p.batches[mask].sum())
        count += int(mask.sum())
        waited += int(p.wait_ns[mask].sum())
    return Evaluation(
        iterations=batches,
        passes=count or len(segments),
        seconds=float((segments[:, 1] - segments[:, 0]).sum() / 1e9),
        data_wait_s=waited / 1e9,
        loaders=ids,
    )
