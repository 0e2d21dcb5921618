"""The steps of a run in bins, and the histogram of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.summary.charts import MIN_BINS, Histogram, StepBins
from trainprof.analysis.timeline.steady_state import slow_steps

if TYPE_CHECKING:
    from trainprof.analysis.run.run_numbers import FirstProcess
    from trainprof.analysis.statistics.step_noise import Floats
    from trainprof.analysis.timeline.events import Int64
    from trainprof.analysis.timeline.step_table import StepTable

_HISTOGRAM_BINS: Final = 50
# From this ratio of the longest step to the median on, a linear scale has most steps in one bin.
_LOG_FROM: Final = 5.0
_MOST_DECADES: Final = 4


def step_bins(process: FirstProcess, steps: StepTable) -> StepBins | None:
    """Returns the steps in bins, None without any."""
    count, timeline = len(steps), process.run.timeline
    if count == 0:
        return None
    per_bin = 1 if count < 2 * MIN_BINS else count // MIN_BINS
    first = np.arange(0, count, per_bin)
    last = np.append(first[1:], count) - 1
    wall = steps.wall_ns
    is_outlier = np.zeros(count, dtype=np.int64)
    is_outlier[slow_steps(wall, steps.candidates)] = 1
    # Of whole bins, and of the last one.
    whole = count // per_bin * per_bin
    tables = [x for x in (wall[:whole].reshape(-1, per_bin), wall[None, whole:]) if x.size]
    middle = [np.percentile(table, [50, 95], axis=1) for table in tables]
    p50, p95 = (np.concatenate([rows[at] for rows in middle]) for at in (0, 1))
    slowest = first + np.concatenate([table.argmax(axis=1) for table in tables])
    epoch = steps.epoch_of[first]
    sums = {key: np.add.reduceat(ns, first) for key, ns in steps.per_step.items()}
    return StepBins(
        per_bin=per_bin,
        first=(first + process.first_step).astype(np.int32),
        count=(last - first + 1).astype(np.int32),
        start_s=(timeline.step_starts[first] - process.run.origin_ns) / 1e9,
        end_s=(timeline.steps.ends[last] - process.run.origin_ns) / 1e9,
        total_s=np.add.reduceat(wall, first) / 1e9,
        min_s=_seconds(np.minimum.reduceat(wall, first)),
        p50_s=_seconds(p50),
        p95_s=_seconds(p95),
        max_s=_seconds(wall[slowest]),
        slowest=(slowest + process.first_step).astype(np.int32),
        outliers=np.add.reduceat(is_outlier, first).astype(np.int32),
        epoch=np.where(epoch >= 0, epoch + process.first_epoch, -1).astype(np.int32),
        parts_s={key: ns / 1e9 for key, ns in sums.items() if ns.any()},
    )


def _seconds(ns: Int64 | Floats) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (ns / 1e9).astype(np.float32)


def step_histogram(steps: StepTable) -> Histogram:
    """Returns the histogram of at least one step's time, with warm-up and outliers."""
    step_s = steps.wall_ns / 1e9
    shortest, median, longest = float(step_s.min()), float(np.median(step_s)), float(step_s.max())
    is_log = longest > _LOG_FROM * median
    if is_log:
        shortest = max(shortest, longest / 10**_MOST_DECADES)
        edges = np.geomspace(shortest, longest, _HISTOGRAM_BINS + 1)
    else:
        # Equal times have a bin of their own.
        around = max(longest / _HISTOGRAM_BINS, 1e-9) if longest - shortest < 1e-9 else 0.0
        edges = np.linspace(max(shortest - around, 0.0), longest + around, _HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(np.clip(step_s, edges[0], edges[-1]), edges)
    return Histogram(
        name="step time",
        unit="s",
        edges=edges.astype(np.float32),
        counts=counts.astype(np.float32),
        is_log=is_log,
    )
