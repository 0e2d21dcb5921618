"""Which steps show how training runs once it has settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainprof.analysis.timeline.events import Bool, Int64

MIN_STEADY_STEPS: Final = 20
_WINDOW: Final = 5
_BLOCK: Final = 1 << 14
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


def steady_steps(wall_ns: Int64, *, border: Bool, buffered: Bool, cycle: int = 1) -> Steady:
    """Leaves out warm-up, borders of passes, steps fed from a full buffer, and a broken cycle.

    All but warm-up are kept where too few steps would remain.

    Args:
        wall_ns: Of each step.
        border: Steps in which a pass begins or evaluation ran.
        buffered: Steps fed by batches that workers had piled up before.
        cycle: Steps after which waits repeat (workers take turns): means are over whole ones.
    """
    count = len(wall_ns)
    inner = np.flatnonzero(~border)
    if len(inner) < MIN_STEADY_STEPS:
        inner = np.arange(count)
    # The first step is never steady; where it is a border it is left out already.
    least = 1 if count and inner[0] == 0 else 0
    warmup = int(inner[_warmup(wall_ns[inner], least)]) if count > 1 else 0
    settled = np.arange(count) >= warmup
    for left_out in (border | buffered, border, np.zeros(count, dtype=bool)):
        mask = settled & ~left_out
        if mask.sum() >= min(MIN_STEADY_STEPS, max(1, settled.sum())):
            return Steady(_whole_cycles(mask, cycle), warmup)
    return Steady(settled, warmup)


def _whole_cycles(mask: Bool, cycle: int) -> Bool:
    """Leaves out the last steps that do not make a whole cycle."""
    chosen = np.flatnonzero(mask)
    surplus = len(chosen) % cycle
    if surplus == 0 or len(chosen) - surplus < MIN_STEADY_STEPS:
        return mask
    whole: Bool = mask.copy()
    whole[chosen[-surplus:]] = False
    return whole


def _warmup(wall_ns: Int64, least: int) -> int:
    """Finds the change-point: the first step that is near the later median, as its followers are.

    Args:
        wall_ns: Of the steps, at least two.
        least: The first step it may be.
    """
    count = len(wall_ns)
    later = wall_ns[count // 2 :]
    level = float(np.median(later))
    spread = _MAD_TO_STD * float(np.median(np.abs(later - level)))
    tolerance = max(_SETTLED_SHARE * level, 3 * spread)
    windows = sliding_window_view(wall_ns, min(_WINDOW, count))
    for first in range(least, count // 2, _BLOCK):
        ahead = windows[first : min(first + _BLOCK, count // 2)]
        off = np.maximum(np.abs(np.median(ahead, axis=1) - level), np.abs(ahead[:, 0] - level))
        settled = np.flatnonzero(off <= tolerance)
        if len(settled):
            return first + int(settled[0])
    return max(least, count // 4)
