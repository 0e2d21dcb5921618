"""Whether a part of a step takes longer and longer: what goes over all that was collected."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from trainprof.analysis.events import Int64
from trainprof.analysis.step_table import StepTable

# Steps of an epoch, of which the first third is held against the last.
_LEAST_STEPS: Final = 30
# By so many times the one, and by such a share of a mean step.
_LEAST_TIMES: Final = 1.5
_LEAST_SHARE: Final = 0.03
# An epoch begins anew where its first third takes no more of the last third before it than this.
_ANEW_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Growth:
    """What a part takes of a step, in s, in the first and the last third.

    Attributes:
        is_of_epochs: Of each epoch; else of the run.
    """

    first_s: float
    last_s: float
    is_of_epochs: bool


def growth_of(part: Int64, steps: StepTable) -> Growth | None:
    """Returns how a part of the steps grows; None where it does not, in each epoch alike.

    Args:
        part: ns of each step, shape (n_steps,).
        steps: All of them.
    """
    thirds = [
        (float(part[own[: len(own) // 3]].mean()), float(part[own[-(len(own) // 3) :]].mean()))
        for epoch in np.unique(steps.epoch_of).tolist()
        if len(own := np.flatnonzero((steps.epoch_of == epoch) & steps.candidates)) >= _LEAST_STEPS
    ]
    if not thirds:
        return None
    least_ns = _LEAST_SHARE * float(steps.wall_ns[steps.candidates].mean())
    if any(last < max(_LEAST_TIMES * first, first + least_ns) for first, last in thirds):
        return None
    anew = [later[0] <= _ANEW_SHARE * before[1] for before, later in pairwise(thirds)]
    if anew and all(anew):
        first, last = (float(np.mean(side)) for side in zip(*thirds, strict=True))
    else:
        first, last = thirds[0][0], thirds[-1][1]
    return Growth(first / 1e9, last / 1e9, is_of_epochs=bool(anew) and all(anew))
