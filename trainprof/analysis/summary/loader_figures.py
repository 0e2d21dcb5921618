"""Figures of a loader of a summary: what it costs, its unusual samples, its workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.analysis.summary.run import Statistics

UNUSUAL_FROM: Final = 5.0
UNUSUAL_MIN_S: Final = 0.01
# Of slow samples that are where parts of the data begin: so many, of so many samples each.
_FEWEST_PARTS: Final = 3
_SHORTEST_PART: Final = 8


def unusual_samples(fetch: Fetch) -> list[Mapping[str, Any]]:
    """Returns of the slowest samples those of UNUSUAL_FROM x the typical one, slowest first.

    Time in which the machine kept a sample from its cores does not count.
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
    """Whether slow samples are the first of parts of the data of one length, read one by one."""
    indices = [int(index) for sample in slow if (index := known(sample.get("index"))) is not None]
    apart = math.gcd(*indices)
    return len(set(indices)) >= _FEWEST_PARTS and apart >= _SHORTEST_PART


def _own_s(sample: Mapping[str, Any]) -> float:
    return (known(sample.get("seconds")) or 0.0) - (known(sample.get("kept_off_s")) or 0.0)


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


Row = Mapping[str, Any]

_PARTS: Final = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
_SUMS: Final = ("n", "seconds", *_PARTS)
_HIGHEST: Final = ("rss_bytes",)
_MEANS: Final = ("read_bytes_per_s", "read_calls_per_s")


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """One worker over all epochs.

    Attributes:
        number: From 0; None for the process that trains.
        busy_share: Of the time in which it could have been asked for something.
        figures: Sums, highest values and means by the names of `Fetch.per_worker`.
    """

    number: int | None
    busy_share: float | None
    figures: Mapping[str, float | None]

    @property
    def mean_s(self) -> float | None:
        n, seconds = self.figures["n"], self.figures["seconds"]
        return seconds / n if n and seconds is not None else None


def worker_totals(per_worker: Sequence[Any]) -> list[WorkerTotals]:
    """Joins the rows of each worker, in order of number; an edited summary may hold anything."""
    groups: dict[int | None, list[Row]] = {}
    for row in per_worker:
        if isinstance(row, Mapping):
            number = known(row.get("worker"))
            groups.setdefault(None if number is None else int(number), []).append(row)
    order = sorted(groups, key=lambda number: (number is not None, number or 0))
    return [_joined(number, groups[number]) for number in order]


def _joined(number: int | None, rows: list[Row]) -> WorkerTotals:
    figures: dict[str, float | None] = {}
    for names, join in ((_SUMS, sum), (_HIGHEST, max), (_MEANS, fmean)):
        figures |= {name: _over(rows, name, join) for name in names}
    return WorkerTotals(number, _busy_share(rows), figures)


def _over(rows: list[Row], name: str, join: Callable[[Iterable[float]], float]) -> float | None:
    values = [value for row in rows if (value := known(row.get(name))) is not None]
    return join(values) if values else None


def _busy_share(rows: list[Row]) -> float | None:
    busy_s = asked_s = 0.0
    for row in rows:
        share, seconds = known(row.get("busy_share")), known(row.get("seconds"))
        if share is None or seconds is None or not 0 < share <= 1 or seconds <= 0:
            continue
        busy_s += seconds
        asked_s += seconds / share
    return busy_s / asked_s if asked_s > 0 else None
