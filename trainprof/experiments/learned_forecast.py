"""What trials that were measured tell of one that is still to be run.

The model's forecast of a single setting is as wide as what a recording cannot tell: how threads get
on beside workers, what waking up takes. Much of that is the same for another number of workers,
and so is in what one of them was measured to give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.pipeline import MODEL_ERROR
from trainprof.analysis.speedup import SpeedUp
from trainprof.experiments.candidate import Candidate, Interval

# How far the model may be off between two settings, each of which it may be off by MODEL_ERROR.
_BETWEEN: Final = math.log1p(2 * MODEL_ERROR)

SpeedOf = Callable[[Candidate], SpeedUp | None]


@dataclass(frozen=True, slots=True)
class Learned:
    """A forecast that counts what was measured.

    Attributes:
        after: The name of the trial that was.
    """

    interval: Interval
    after: str


def learned(candidate: Candidate, tried: Sequence[Candidate], speed_of: SpeedOf) -> Learned | None:
    """Returns the forecast by what another change of the same kind gave; None if it is no narrower.

    What the model says of the one against the other is put upon what the other was measured to
    give. Both are measured against the same baselines, so that the interval of the one is what two
    runs may differ by.

    Args:
        candidate: To be run.
        tried: All that may have been.
        speed_of: What was measured.
    """
    if candidate.predicted is None:
        return None
    narrowest, found = _width(candidate.predicted), None
    for other in tried:
        if other.subject != candidate.subject or other.predicted is None or other is candidate:
            continue
        speed = speed_of(other)
        if speed is None or speed.mid is None or speed.low is None or speed.high is None:
            continue
        ratios = [my / its for my, its in zip(candidate.predicted, other.predicted, strict=True)]
        below, above = (
            math.hypot(math.log(part), _BETWEEN)
            for part in (speed.mid / speed.low, speed.high / speed.mid)
        )
        interval = (
            speed.mid * min(ratios) * math.exp(-below),
            speed.mid * max(ratios) * math.exp(above),
        )
        if _width(interval) < narrowest:
            narrowest, found = _width(interval), Learned(interval, other.name)
    return found


def _width(interval: Interval) -> float:
    return math.log(interval[1] / interval[0]) if interval[0] > 0 else math.inf
