"""What each optimizer's own steps take: the ledger has all updates under one key."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting
from trainprof.analysis.timeline.intervals import Coverage, own_inside_ns
from trainprof.analysis.timeline.ledger import KEY, Attribution, Window
from trainprof.record.schema import Kind

# What belongs to the update, and is no optimizer's.
_BESIDE_STEPS: Final = (
    Kind.SCALER_STEP,
    Kind.SCALER_UPDATE,
    Kind.CLIP_GRADIENTS,
    Kind.SCHEDULER_STEP,
)


def update_seconds(
    events: Events,
    nesting: Nesting,
    attribution: Attribution,
    window: Window,
    compiling: Coverage | None = None,
) -> dict[int, float]:
    """Returns the part of the ledger's `optimizer` that lies in optimizers' steps.

    Args:
        events: The training thread's.
        nesting: Of `events`.
        attribution: Of `events`: what has another key inside a step is not counted.
        window: The run's; only its loop counts.
        compiling: When the training thread compiled, which is not counted.

    Returns:
        Seconds by the number that records have of each optimizer.
    """
    is_step, is_beside = events.is_kind(Kind.OPTIMIZER_STEP), events.is_kind(*_BESIDE_STEPS)
    in_loop = (events.start >= window.loop_start) & (events.start < window.loop_end)
    counted = np.flatnonzero(in_loop & (attribution.key == KEY["optimizer"]) & ~is_beside)
    around = _innermost(nesting, counted, is_step | is_beside)
    is_in_step = (around >= 0) & is_step[around]
    counted, around = counted[is_in_step], around[is_in_step]
    own_ns = attribution.own_ns[counted].astype(np.int64)
    if compiling is not None:
        own_ns -= own_inside_ns(compiling, events, nesting)[counted]
    numbers, which = np.unique(events.site[around], return_inverse=True)
    sums = np.bincount(which, weights=np.maximum(own_ns, 0))
    return {int(number): float(ns / 1e9) for number, ns in zip(numbers, sums, strict=True)}


def _innermost(nesting: Nesting, chosen: Int64, wanted: Bool) -> Int64:
    """Returns each of the chosen events, or the innermost wanted one around it; -1 for none."""
    around = chosen.astype(np.int64)
    while (above := (around >= 0) & ~wanted[around]).any():
        around[above] = nesting.parent[around[above]]
    return around
