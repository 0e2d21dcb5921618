"""Steps that take much longer than the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.summary.run import Outlier
from trainprof.analysis.timeline.events import Bool, Int64

MIN_RATIO: Final = 2.0
MIN_EXCESS_NS: Final = 10_000_000
MAX_LISTED: Final = 100
# Where every fourth step is slow, slow steps are the rule (workers that deliver in turns).
MAX_SHARE: Final = 0.25
# So many of the distances between outliers must be the same to call them regular.
_REGULAR_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Outliers:
    """Steps that take much longer than the rest.

    Attributes:
        count: How many there are.
        longest: Of them, the longest first, at most MAX_LISTED.
    """

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
    """Finds the outliers.

    Args:
        wall_ns: Of each step, without evaluation.
        starts: Of each step, ns.
        per_step: Ledger key to ns per step.
        candidates: Steps after warm-up and off the borders of passes.
        epoch_of: Epoch of each step, -1 where there is none.
        origin_ns: Start of the run.
        samples_between: Means of system samples in a window.

    Source:
        2 x median is smdebug's StepOutlier; the floor keeps jitter of short steps out.
    """
    if not candidates.any():
        return Outliers(0, [])
    median = float(np.median(wall_ns[candidates]))
    limit = max(MIN_RATIO * median, median + MIN_EXCESS_NS)
    found = np.flatnonzero(candidates & (wall_ns >= limit))
    if len(found) == 0 or len(found) > MAX_SHARE * candidates.sum():
        return Outliers(0, [])
    every = _spacing(found)
    typical = {key: float(np.median(values[candidates])) for key, values in per_step.items()}
    worst = found[np.argsort(-wall_ns[found], kind="stable")][:MAX_LISTED]
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
    return Outliers(len(found), longest)


def _spacing(steps: Int64) -> int | None:
    if len(steps) < 3:
        return None
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    most = int(counts.argmax())
    if distances[most] > 1 and counts[most] >= _REGULAR_SHARE * counts.sum():
        return int(distances[most])
    return None
