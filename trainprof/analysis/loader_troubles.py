"""What is out of the ordinary in the making of a loader's batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from trainprof.analysis.facts import known
from trainprof.analysis.loader_figures import Fetch
from trainprof.analysis.worker_totals import WorkerTotals, worker_totals

STRAGGLES_FROM: Final = 1.5
# The mean of fewer fetches says little about a worker.
MIN_FETCHES: Final = 10
UNUSUAL_FROM: Final = 5.0
UNUSUAL_MIN_S: Final = 0.01
# Of slow samples that are where parts of the data begin: so many, of so many samples each.
_FEWEST_PARTS: Final = 3
_SHORTEST_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker whose fetches take longer than those of the others; means, in s."""

    number: int
    mean_s: float
    others_s: float


def stragglers(fetch: Fetch) -> list[Straggler]:
    """Returns the workers with a mean fetch of STRAGGLES_FROM x the others' median, slowest first.

    Those that the batches were spread unevenly over, or whose share of the data costs more.
    """
    means = {
        worker.number: mean_s
        for worker in worker_totals(fetch.per_worker)
        if worker.number is not None and (mean_s := _steady_mean(worker)) is not None
    }
    found = []
    for number, mean_s in means.items():
        others = [other for its_number, other in means.items() if its_number != number]
        if others and mean_s >= STRAGGLES_FROM * median(others) > 0:
            found.append(Straggler(number, mean_s, median(others)))
    return sorted(found, key=lambda one: -one.mean_s)


def unusual_samples(fetch: Fetch) -> list[Mapping[str, Any]]:
    """Returns of the slowest samples those of UNUSUAL_FROM x the typical one, slowest first.

    One that the machine kept from its cores is as slow as another would have been then.
    """
    typical = known(fetch.typical_sample_s)
    if typical is None or typical <= 0:
        return []
    least = max(UNUSUAL_FROM * typical, UNUSUAL_MIN_S)
    return [
        sample
        for sample in fetch.slow_samples
        if isinstance(sample, Mapping) and _own_s(sample) >= least
    ]


def are_begun_parts(slow: Sequence[Mapping[str, Any]]) -> bool:
    """Whether slow samples are the first of parts of the data of one length, read one by one.

    Then the next would be slow in their place.
    """
    indices = [int(index) for one in slow if (index := known(one.get("index"))) is not None]
    apart = math.gcd(*indices)
    return len(set(indices)) >= _FEWEST_PARTS and apart >= _SHORTEST_PART


def _own_s(sample: Mapping[str, Any]) -> float:
    return (known(sample.get("seconds")) or 0.0) - (known(sample.get("kept_off_s")) or 0.0)


def _steady_mean(worker: WorkerTotals) -> float | None:
    return worker.mean_s if (worker.figures["n"] or 0) >= MIN_FETCHES else None
