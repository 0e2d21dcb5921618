"""How much longer computing with a batch takes while workers make others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.events import Int64
from trainprof.analysis.pipeline import PipelineInputs
from trainprof.analysis.pipeline_model import Float64

# Workers at work, as a mean: with fewer the training process has the cores to itself, with more it
# shares them.
_ALONE: Final = 0.05
_BESIDE: Final = 0.5
# Of batches computed with alone: so many tell, from so large a part of the run. Fewer, from the end
# of the run, say how much it may be at most: it may be the run that changed.
_ENOUGH: Final = 5
_SPREAD: Final = 0.5
_SOME: Final = 1
# So many tell a mean of them, of all but so large a part, which is what comes now and then.
_MANY: Final = 20
_USUAL: Final = 0.95
# Looked for is what comes every so many batches, or more often, among the first so many of a run.
_TURNS: Final = 12
_LOOKED_AT: Final = 4_000


@dataclass(frozen=True, slots=True)
class Crowding:
    """Computing with a batch, with workers at work beside it and without.

    Attributes:
        alone_s, beside_s: What it takes: the median.
        alone, beside: Of so many batches.
        saved_s: Of a mean batch, were none computed with beside workers: by medians, or by means
            where those are larger and can be trusted.
        is_sure: There were enough of both, all over the run.
    """

    alone_s: float
    beside_s: float
    alone: int
    beside: int
    saved_s: float
    is_sure: bool


def crowding_of(inputs: PipelineInputs) -> Crowding | None:
    """Returns by how much workers that are at work slow computing, where that was seen.

    None where the workers always were at work, or hardly ever; and where it takes as long beside
    them as alone, so far as steps wander.
    """
    busy, compute_s = inputs.workers_busy, inputs.compute_s
    if busy is None or len(busy) != len(compute_s):
        return None
    # The first batch of a pass finds cold caches, the last may be a smaller one.
    place = np.arange(len(busy)) % max(inputs.batches, 1)
    is_inner = (place > 0) & (place < inputs.batches - 1)
    alone = np.flatnonzero(is_inner & (busy < _ALONE))
    beside = np.flatnonzero(is_inner & (busy >= _BESIDE))
    if len(alone) < _SOME or len(beside) < _ENOUGH:
        return None
    is_sure = len(alone) >= _ENOUGH and int(np.ptp(alone)) >= _SPREAD * len(busy)
    # What comes every so many batches is in neither median.
    _, alone_s, slowest_alone_s = np.quantile(compute_s[alone], (0.25, 0.5, 0.75)).tolist()
    fastest_s, beside_s, _ = np.quantile(compute_s[beside], (0.25, 0.5, 0.75)).tolist()
    if slowest_alone_s >= fastest_s:
        return None
    longer_s = beside_s - alone_s
    if (
        is_sure
        and len(alone) >= _MANY
        and not _takes_turns(compute_s[:_LOOKED_AT], place[:_LOOKED_AT])
    ):
        # A worker holds up some batches many times as long as others: the mean counts them all.
        means = _mean_of_usual(compute_s[beside]) - _mean_of_usual(compute_s[alone])
        longer_s = max(longer_s, means)
    saved_s = float((busy[is_inner] >= _ALONE).mean()) * longer_s
    return Crowding(alone_s, beside_s, len(alone), len(beside), saved_s, is_sure)


def _mean_of_usual(times_s: Float64) -> float:
    return float(times_s[times_s <= np.quantile(times_s, _USUAL)].mean())


def _takes_turns(compute_s: Float64, place: Int64) -> bool:
    """Whether each so-manieth batch takes longer: those computed with alone may be none of them."""
    compute_s, place = compute_s[:_LOOKED_AT], place[:_LOOKED_AT]
    for turns in range(2, _TURNS + 1):
        for counted in (place, np.arange(len(place))):
            for turn in range(turns):
                is_its = counted % turns == turn
                its, others = compute_s[is_its], compute_s[~is_its]
                if len(its) and np.quantile(its, 0.25) > np.quantile(others, 0.75):
                    return True
    return False
