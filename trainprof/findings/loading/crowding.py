"""How much longer computing with a batch takes while workers make others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.bounds import PipelineInputs

# Workers at work, as a mean: with fewer the training process has the cores to itself, with more it
# shares them.
_ALONE: Final = 0.05
_BESIDE: Final = 0.5
# Of batches of either kind: so many say something, from so large a part of the run.
_ENOUGH: Final = 5
_SPREAD: Final = 0.5


@dataclass(frozen=True, slots=True)
class Crowding:
    """Computing with a batch, with workers at work beside it and without.

    Attributes:
        alone_s, beside_s: What it takes: the median.
        saved_s: Of a mean batch, were none computed with beside workers.
    """

    alone_s: float
    beside_s: float
    saved_s: float


def crowding_of(inputs: PipelineInputs) -> Crowding | None:
    """Returns by how much workers that are at work slow computing.

    None where too few batches were computed with either way, or as fast, so far as steps wander.
    """
    busy, compute_s = inputs.workers_busy, inputs.compute_s
    if busy is None or len(busy) != len(compute_s):
        return None
    # The first batch of a pass finds cold caches, the last may be a smaller one.
    place = np.arange(len(busy)) % max(inputs.batches, 1)
    is_inner = (place > 0) & (place < inputs.batches - 1)
    alone = np.flatnonzero(is_inner & (busy < _ALONE))
    beside = np.flatnonzero(is_inner & (busy >= _BESIDE))
    if min(len(alone), len(beside)) < _ENOUGH or np.ptp(alone) < _SPREAD * len(busy):
        return None
    # What comes every so many batches is in neither median.
    alone_s, slowest_alone_s = np.quantile(compute_s[alone], (0.5, 0.75)).tolist()
    fastest_s, beside_s = np.quantile(compute_s[beside], (0.25, 0.5)).tolist()
    if slowest_alone_s >= fastest_s:
        return None
    saved_s = float((busy[is_inner] >= _ALONE).mean()) * (beside_s - alone_s)
    return Crowding(alone_s, beside_s, saved_s)
