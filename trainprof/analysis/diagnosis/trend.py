"""Whether a part of a step takes longer and longer: what goes over all that was collected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from trainprof.analysis.events import Int64
from trainprof.analysis.pipeline_model import Float64
from trainprof.analysis.step_table import StepTable

# Steps of an epoch, or of the run, that are held against each other in parts.
_LEAST_STEPS: Final = 30
# Of a run: they do what comes but once.
_SET_UP_STEPS: Final = 10
_PARTS: Final = 5
# The last part by so many times the first, and by such a share of a usual step.
_LEAST_TIMES: Final = 1.5
_LEAST_SHARE: Final = 0.03
# What grows by so many times, and evenly, may once be quicker than before by such a share: the
# machine was.
_CLEAR_TIMES: Final = 3.0
_DIP_SHARE: Final = 0.15
_EVENLY: Final = (0.25, 0.8)
# An epoch begins anew where its first part takes no more of the last part before it than this.
_ANEW_SHARE: Final = 0.75
_EPOCHS_LOOKED_AT: Final = 100


@dataclass(frozen=True, slots=True)
class Growth:
    """What a part takes of a step, in s, in the first and the last fifth: medians.

    Attributes:
        is_of_epochs: Of each epoch; else of the run.
    """

    first_s: float
    last_s: float
    is_of_epochs: bool

    @property
    def times(self) -> float:
        """How many times as long it takes in the end."""
        return self.last_s / self.first_s if self.first_s > 0 else math.inf

    @property
    def at_start_s(self) -> float:
        """What it takes of the very first step, had it grown evenly."""
        # From the middle of the first fifth to that of the last.
        a_fifth_s = (self.last_s - self.first_s) / (_PARTS - 1)
        return max(self.first_s - a_fifth_s / 2, 0.0)


def growth_of(part: Int64, steps: StepTable) -> Growth | None:
    """Returns how a part of the steps grows, in each epoch alike or over the run; None if neither.

    Args:
        part: ns of each step, shape (n_steps,).
        steps: All of them.
    """
    # What grows from the first step on makes much of the run look like a warm-up.
    place = np.arange(len(steps.candidates))
    warmed_up = (place >= _SET_UP_STEPS) & (place < steps.steady.warmup) & ~steps.border
    counted = np.flatnonzero(steps.candidates | warmed_up)
    if len(counted) < _LEAST_STEPS:
        return None
    least_ns = _LEAST_SHARE * float(np.median(steps.wall_ns[counted]))
    took, epoch = part[counted].astype(np.float64), steps.epoch_of[counted]
    borders = np.flatnonzero(np.diff(epoch)) + 1
    whole = [one for one in np.split(took, borders) if len(one) >= _LEAST_STEPS]
    epochs = [_medians(one) for one in whole[:_EPOCHS_LOOKED_AT]]
    begins_anew = [later[0] <= _ANEW_SHARE * before[-1] for before, later in pairwise(epochs)]
    if begins_anew and all(begins_anew) and all(_rises(one, least_ns) for one in epochs):
        first, last = (float(np.mean([one[place] for one in epochs])) for place in (0, -1))
        return Growth(first / 1e9, last / 1e9, is_of_epochs=True)
    run = _medians(took)
    if not _rises(run, least_ns):
        return None
    return Growth(float(run[0]) / 1e9, float(run[-1]) / 1e9, is_of_epochs=False)


def _medians(took: Float64) -> Float64:
    return np.array([np.median(one) for one in np.array_split(took, _PARTS)])


def _rises(medians: Float64, least_ns: float) -> bool:
    """Whether it goes up from part to part, far enough in all."""
    first, last = float(medians[0]), float(medians[-1])
    if last < max(_LEAST_TIMES * first, first + least_ns):
        return False
    rises = np.diff(medians)
    if (rises > 0).all():
        return True
    way = (float(medians[len(medians) // 2]) - first) / (last - first)
    is_even = _EVENLY[0] <= way <= _EVENLY[1] and last >= _CLEAR_TIMES * first
    is_dip = (rises <= 0) & (rises >= -_DIP_SHARE * medians[:-1])
    return is_even and int(is_dip.sum()) == int((rises <= 0).sum()) == 1
