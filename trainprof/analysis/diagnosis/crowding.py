"""How much longer computing with a batch takes while workers make others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.pipeline import PipelineInputs

# Workers at work, as a mean: with fewer the training process has the cores to itself, with more it
# shares them.
_ALONE: Final = 0.05
_BESIDE: Final = 0.5
# Of batches computed with alone: so many tell, from so large a part of the run. Fewer, from the end
# of the run, say how much it may be at most: it may be the run that changed.
_ENOUGH: Final = 5
_SPREAD: Final = 0.5
_SOME: Final = 1


@dataclass(frozen=True, slots=True)
class Crowding:
    """Computing with a batch, with workers at work beside it and without.

    Attributes:
        alone_s, beside_s: What it takes: the median.
        alone, beside: Of so many batches.
        saved_s: Of a mean batch, were none computed with beside workers.
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
    # What comes every so many steps is in neither median.
    _, alone_s, slowest_alone_s = np.quantile(compute_s[alone], (0.25, 0.5, 0.75)).tolist()
    fastest_s, beside_s, _ = np.quantile(compute_s[beside], (0.25, 0.5, 0.75)).tolist()
    if slowest_alone_s >= fastest_s:
        return None
    share = float((busy[is_inner] >= _ALONE).mean())
    saved_s = share * (beside_s - alone_s)
    return Crowding(alone_s, beside_s, len(alone), len(beside), saved_s, is_sure)
