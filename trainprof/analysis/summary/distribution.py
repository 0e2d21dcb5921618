"""Distributions of measured series."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainprof.analysis.summary.run import Statistics


def statistics_s(durations_ns: npt.NDArray[np.int64]) -> Statistics | None:
    """Returns the distribution of durations, in seconds; None for an empty series.

    Args:
        durations_ns: Shape (n,), ns.
    """
    if len(durations_ns) == 0:
        return None
    seconds = durations_ns / 1e9
    p50, p90, p95, p99 = np.percentile(seconds, [50, 90, 95, 99]).tolist()
    return Statistics(
        n=len(seconds),
        mean=float(seconds.mean()),
        std=float(seconds.std()),
        min=float(seconds.min()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(seconds.max()),
    )
