"""What training spends on a loader."""

from __future__ import annotations

import math

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Statistics


def cost_s(loader: Loader) -> float:
    """Returns what training spends on a loader: waits, and what `starts_s` says."""
    return loader.wait_total_s + starts_s(loader)


def starts_s(loader: Loader) -> float:
    """Returns what iterators, with the start of their workers, and first batches took."""
    return total_s(loader.init_s) + total_s(loader.first_batch_s)


def total_s(statistics: Statistics | None) -> float:
    """Returns the sum of a series, 0 where there is none."""
    if statistics is None or not math.isfinite(statistics.mean):
        return 0.0
    return statistics.mean * statistics.n
