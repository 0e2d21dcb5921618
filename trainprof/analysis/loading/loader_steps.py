"""Which steps of training the batches of a loader go into."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.iterations import TRAINING, LoaderIterations, is_used_later
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind

# Of steps: a loader that feeds so much of them feeds all. The first and the last of an epoch may
# lie half in it, and what comes ahead of the first batch may be a step.
NEARLY_ALL: Final = 0.9


def shares_of_steps(timeline: Timeline, steps: StepTable) -> dict[int, float]:
    """Returns which share of training's steps each loader feeds, by its id, from 0 to 1.

    By their time, without checkpoints (and evaluation). Those that take turns, or feed one phase
    each, have a part each; of those that are asked in every step each feeds all. Loaders that feed
    no step are left out.
    """
    own_ns = np.maximum(steps.wall_ns - steps.per_step.get("checkpoint", 0), 0)
    whole_ns = float(own_ns.sum())
    shares = {}
    for p in timeline.loaders_here():
        fed_ns = float(own_ns[_fed_by(p, timeline)].sum()) if p.role == TRAINING else 0.0
        if fed_ns > 0:
            shares[p.loader] = _share(fed_ns, whole_ns)
    return shares


def are_all_fed(timeline: Timeline) -> bool:
    """Whether loaders feed nearly all steps: others have kept batches, or data of another kind."""
    has_loader = np.zeros(len(timeline.steps.ends), dtype=bool)
    for p in timeline.loaders:
        if p.role == TRAINING:
            has_loader |= _fed_by(p, timeline)
    return _share(float(has_loader.sum()), float(len(has_loader))) == 1.0


def _share(part: float, whole: float) -> float:
    return 1.0 if part >= NEARLY_ALL * whole else part / whole


def _fed_by(p: LoaderIterations, timeline: Timeline) -> Bool:
    """Returns the steps from the one that takes an epoch's first batch to its last.

    Those that take none meanwhile use what the step before took: several updates a batch.

    Returns:
        Shape (n_steps,).
    """
    ends = timeline.steps.ends
    trained = p.trained()
    first = np.searchsorted(ends, _first_batches(p, timeline)[trained], side="right")
    # What an epoch ends in is a step of it where its last batch is still to be used.
    used = is_used_later(p, timeline.learning())[trained]
    last = np.searchsorted(ends, p.end[trained]) - np.where(used, 0, 1)
    last = np.maximum(last, np.searchsorted(ends, p.last_next[trained], side="right"))
    # +1 where a stretch of them begins, -1 behind it.
    change = np.zeros(len(ends) + 1, dtype=np.int64)
    np.add.at(change, np.minimum(first, len(ends)), 1)
    np.add.at(change, np.minimum(last + 1, len(ends)), -1)
    is_fed: Bool = np.cumsum(change)[: len(ends)] > 0
    return is_fed


def _first_batches(p: LoaderIterations, timeline: Timeline) -> Int64:
    """Returns when the first batch of each epoch was asked for: its iterator may be far older."""
    events = timeline.all_events
    asked = np.sort(events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)])
    if len(asked) == 0:
        return p.start
    firsts: Int64 = asked[np.minimum(np.searchsorted(asked, p.start), len(asked) - 1)]
    return firsts
