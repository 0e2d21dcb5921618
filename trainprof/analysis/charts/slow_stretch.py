"""The stretch of a run in which its steps were slow, and what grew there."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.summary.charts import SlowStretch, StepBins
from trainprof.analysis.summary.levels import MIN_STEADY_STEPS

# Times the typical step: most steps of the stretch take longer.
_SLOWER: Final = 1.5
# Of the time of all steps: what the stretch adds.
_ADDED_SHARE: Final = 0.01


def slow_stretch(steps: StepBins, warmup: int) -> SlowStretch | None:
    """Returns the consecutive steps after warm-up that cost most beyond typical ones.

    None where no stretch of slow steps adds a noticeable part of training; a few long steps among
    usual ones are outliers.

    Args:
        warmup: Steps of it, of the run or the part that `steps` has.
    """
    bins = np.flatnonzero(steps.first - steps.first[0] >= warmup)
    if len(bins) < MIN_STEADY_STEPS:
        return None
    total_s, count = steps.total_s[bins], steps.count[bins]
    typical_s = float(np.median(total_s / count))
    # The part of the sum with the largest value: up from the lowest point before it.
    excess = np.append(0.0, np.cumsum(total_s - _SLOWER * typical_s * count))
    rise = excess - np.minimum.accumulate(excess)
    end = int(rise.argmax())
    start = int(excess[: end + 1].argmin())
    inside = np.zeros(len(bins), dtype=bool)
    inside[start:end] = True
    slow, others = int(count[inside].sum()), int(count[~inside].sum())
    if slow < MIN_STEADY_STEPS or others < MIN_STEADY_STEPS:
        return None
    mean_s, other_s = total_s[inside].sum() / slow, total_s[~inside].sum() / others
    is_stretch = np.median(steps.p50_s[bins][inside]) >= _SLOWER * np.median(steps.p50_s[bins])
    added_s = (mean_s - other_s) * slow
    if not is_stretch or mean_s < _SLOWER * other_s or added_s < _ADDED_SHARE * total_s.sum():
        return None
    grown_s = {
        key: float(part[bins][inside].sum() / slow - part[bins][~inside].sum() / others)
        for key, part in steps.parts_s.items()
    }
    part = max(grown_s, key=lambda key: grown_s[key])
    first, last = bins[start], bins[end - 1]
    return SlowStretch(
        start_s=float(steps.start_s[first]),
        end_s=float(steps.end_s[last]),
        first=int(steps.first[first]),
        last=int(steps.first[last] + steps.count[last]) - 1,
        mean_s=float(mean_s),
        other_s=float(other_s),
        part=part,
        part_s=grown_s[part],
    )
