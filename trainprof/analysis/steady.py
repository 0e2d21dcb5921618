"""Which steps show how training runs once it has settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.events import Bool, Int64

MIN_STEADY_STEPS: Final = 20
_WINDOW: Final = 5
# A step time counts as settled within this share of the later median, or three robust deviations.
_SETTLED_SHARE: Final = 0.25
_MAD_TO_STD: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady steps.

    Attributes:
        mask: Shape (n_steps,).
        warmup: Leading steps left out; others are left out at the borders of passes.
    """

    mask: Bool
    warmup: int


def steady_steps(wall_ns: Int64, *, border: Bool, buffered: Bool) -> Steady:
    """Leaves out warm-up, borders of passes, and steps fed from a full buffer.

    The last two are kept where too few steps would remain.

    Args:
        wall_ns: Of each step.
        border: Steps in which a pass begins or evaluation ran.
        buffered: Steps fed by batches that workers had piled up before.
    """
    count = len(wall_ns)
    warmup = _warmup(wall_ns[~border] if (~border).any() else wall_ns)
    if (~border).any() and warmup:
        warmup = int(np.flatnonzero(~border)[min(warmup, int((~border).sum()) - 1)])
    settled = np.arange(count) >= warmup
    for left_out in (border | buffered, border, np.zeros(count, dtype=bool)):
        mask = settled & ~left_out
        if mask.sum() >= min(MIN_STEADY_STEPS, max(1, settled.sum())):
            return Steady(mask, warmup)
    return Steady(settled, warmup)


def _warmup(wall_ns: Int64) -> int:
    """Finds the change-point: the first step from which a short median is near the later one."""
    count = len(wall_ns)
    if count < 2:
        return 0
    later = wall_ns[count // 2 :]
    level = float(np.median(later))
    spread = _MAD_TO_STD * float(np.median(np.abs(later - level)))
    tolerance = max(_SETTLED_SHARE * level, 3 * spread)
    for first in range(1, count // 2):
        if abs(float(np.median(wall_ns[first : first + _WINDOW])) - level) <= tolerance:
            return first
    return max(1, count // 4)
