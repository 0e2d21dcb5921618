"""Steady steps, steps that save checkpoints, and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.summary.levels import MANY_STEPS, MIN_EXCESS_NS, MIN_RATIO
from trainprof.analysis.summary.levels import MIN_STEADY_STEPS as MIN_STEADY_STEPS
from trainprof.analysis.summary.run import Outlier
from trainprof.analysis.timeline.events import Bool, Int64

_WINDOW: Final = 5
_BLOCK: Final = 1 << 14
# A step time counts as settled within this share of the later median, or three robust deviations.
_SETTLED_SHARE: Final = 0.25
_MAD_TO_STD: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Steady:
    """The mask of steady steps; `warmup` is the number of leading ones excluded."""

    mask: Bool
    warmup: int


def steady_steps(wall_ns: Int64, *, border: Bool, buffered: Bool, cycle: int = 1) -> Steady:
    """Excludes warm-up, borders of epochs, steps fed from a full buffer, and a broken cycle.

    Only warm-up is excluded where too few steps would remain.
    """
    count = len(wall_ns)
    inner = np.flatnonzero(~border)
    if len(inner) < MIN_STEADY_STEPS:
        inner = np.arange(count)
    # The first step is never steady; a border is excluded already.
    least = 1 if count and inner[0] == 0 else 0
    warmup = int(inner[_warmup(wall_ns[inner], least)]) if count > 1 else 0
    # With few steps, enough of them have to remain.
    warmup = min(warmup, max(count - MIN_STEADY_STEPS, int(inner[least]) if count > 1 else 0))
    settled = np.arange(count) >= warmup
    for left_out in (border | buffered, border, np.zeros(count, dtype=bool)):
        mask = settled & ~left_out
        if mask.sum() >= min(MIN_STEADY_STEPS, max(1, settled.sum())):
            return Steady(_whole_cycles(mask, cycle), warmup)
    return Steady(settled, warmup)


def _whole_cycles(mask: Bool, cycle: int) -> Bool:
    chosen = np.flatnonzero(mask)
    surplus = len(chosen) % cycle
    least = MANY_STEPS if len(chosen) >= MANY_STEPS else MIN_STEADY_STEPS
    if surplus == 0 or len(chosen) - surplus < least:
        return mask
    whole: Bool = mask.copy()
    whole[chosen[-surplus:]] = False
    return whole


def _warmup(wall_ns: Int64, least: int) -> int:
    """Finds the first step from `least` on that is near the later median, as its followers are."""
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


CHECKPOINT: Final = "checkpoint"
# What more of the steps do is a part of each step.
_A_PART_OF_EACH: Final = 0.75


def few_that_save(saving: Floats | Int64) -> Bool:
    """Returns the steps with time in checkpoints, without any where nearly all have."""
    saves: Bool = saving > 0
    is_usual = np.count_nonzero(saves) > _A_PART_OF_EACH * len(saves)
    return np.zeros_like(saves) if is_usual else saves


MAX_LISTED: Final = 100
# Where every fourth step is slow, slow steps are usual (workers that deliver in turns).
MAX_SHARE: Final = 0.25
# Share of equal distances between outliers from which on they are regular.
_REGULAR_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Outliers:
    """The number of outliers, and the MAX_LISTED longest."""

    count: int
    longest: list[Outlier]


def outliers(
    wall_ns: Int64,
    starts: Int64,
    per_step: dict[str, Int64],
    *,
    candidates: Bool,
    epoch_of: Int64,
    origin_ns: int,
    samples_between: Callable[[int, int], dict[str, float] | None],
) -> Outliers:
    """Finds the outliers; `samples_between` returns means of system samples in a window."""
    slow = slow_steps(wall_ns, candidates)
    if len(slow) == 0:
        return Outliers(0, [])
    every = _spacing(slow)
    typical = {key: float(np.median(values[candidates])) for key, values in per_step.items()}
    worst = slow[np.argsort(-wall_ns[slow], kind="stable")][:MAX_LISTED]
    longest = []
    for step in worst.tolist():
        excess = {key: float(values[step]) - typical[key] for key, values in per_step.items()}
        grew = max(excess, key=lambda key: excess[key])
        start, wall = int(starts[step]), int(wall_ns[step])
        longest.append(
            Outlier(
                step=step,
                epoch=int(epoch_of[step]) if epoch_of[step] >= 0 else None,
                start_s=(start - origin_ns) / 1e9,
                seconds=wall / 1e9,
                grew=grew,
                grew_s=excess[grew] / 1e9,
                every=every,
                samples=samples_between(start, start + wall),
            )
        )
    return Outliers(len(slow), longest)


def slow_steps(wall_ns: Int64, candidates: Bool) -> Int64:
    """Returns the numbers of the outliers among the candidates.

    Source:
        2 x median is smdebug's StepOutlier; the floor excludes jitter of short steps.
    """
    if not candidates.any():
        return np.empty(0, dtype=np.int64)
    slow = np.flatnonzero(candidates & (wall_ns >= slow_from_ns(wall_ns[candidates])))
    return slow if len(slow) <= MAX_SHARE * candidates.sum() else slow[:0]


def slow_from_ns(durations_ns: Int64) -> float:
    median = float(np.median(durations_ns))
    return max(MIN_RATIO * median, median + MIN_EXCESS_NS)


def _spacing(steps: Int64) -> int | None:
    if len(steps) < 3:
        return None
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    most = int(counts.argmax())
    if distances[most] > 1 and counts[most] >= _REGULAR_SHARE * counts.sum():
        return int(distances[most])
    return None
