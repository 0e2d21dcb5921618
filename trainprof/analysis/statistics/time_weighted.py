"""Statistics of sampled values, weighted by time.

A gauge's sample counts for the span since the sample before it; a counter has one rate per span.
Spans are cut at a window's ends. NaN, and a counter that decreased, exclude their span.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainprof.record.notes import known

Line = dict[str, Any]
Reader = Callable[[Line], float | None]
Floats = NDArray[np.float64]
Times = NDArray[np.int64]

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, in ns of the samples' clock."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Observed values inside a window, shape (n,).

    Attributes:
        weights_ns: Part of each value's span inside the window, over 0.
        spans_ns: The whole spans.
    """

    values: Floats
    weights_ns: Floats
    spans_ns: Floats

    @property
    def mean(self) -> float | None:
        if not len(self.values):
            return None
        return float(np.average(self.values, weights=self.weights_ns))

    @property
    def total(self) -> float:
        return float(np.dot(self.values, self.weights_ns)) / NS_PER_S

    @property
    def share_inside(self) -> float | None:
        if not len(self.values):
            return None
        return float(self.weights_ns.sum() / self.spans_ns.sum())


def spans_between(values: Floats, times_ns: Times, window: Window) -> Spans:
    """Returns values of shape (n - 1,), each from one of n times to the next."""
    starts, ends = times_ns[:-1], times_ns[1:]
    weights = np.minimum(ends, window.end_ns) - np.maximum(starts, window.start_ns)
    is_kept = ~np.isnan(values) & (weights > 0)
    return Spans(
        values=values[is_kept],
        weights_ns=weights[is_kept].astype(np.float64),
        spans_ns=(ends - starts)[is_kept].astype(np.float64),
    )


def statistics(spans: Spans) -> dict[str, float] | None:
    """Returns the time-weighted statistics, or None without a value.

    A percentile is the smallest value that, with all below it, covers that share of the time.
    """
    mean = spans.mean
    if mean is None:
        return None
    order = np.argsort(spans.values, kind="stable")
    covered = np.cumsum(spans.weights_ns[order])
    ordered = spans.values[order]

    def percentile(share: float) -> float:
        # A hair less: rounding of the sum must not push an exact boundary to the next value.
        at = int(np.searchsorted(covered, share * covered[-1] * (1 - 1e-12)))
        return float(ordered[min(at, len(ordered) - 1)])

    return {
        "mean": mean,
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "p5": percentile(0.05),
        "p50": percentile(0.50),
        "p95": percentile(0.95),
        "p99": percentile(0.99),
    }


def gauge(values: Floats, times_ns: Times, window: Window, *, since_ns: int) -> Spans:
    """Returns a gauge's values with their spans."""
    return spans_between(values, np.concatenate(([since_ns], times_ns)), window)


def gauge_statistics(
    values: Floats, times_ns: Times, window: Window, *, since_ns: int
) -> dict[str, float] | None:
    """Returns a gauge's statistics up to the window's end, or None without a value.

    A sample at the start has no span: it counts only if it is the only one.
    """
    is_inside = times_ns <= window.end_ns
    values, times_ns = values[is_inside], times_ns[is_inside]
    spans = gauge(values, times_ns, window, since_ns=since_ns)
    if not len(spans.values):
        observed = values[~np.isnan(values)]
        spans = Spans(observed, np.ones_like(observed), np.ones_like(observed))
    return statistics(spans)


def rates(values: Floats, times_ns: Times, window: Window) -> Spans:
    """Returns a counter's rates, per s, one for each span without a decrease."""
    grown, passed_ns = np.diff(values), np.diff(times_ns)
    is_good = (passed_ns > 0) & (grown >= 0)
    per_s = np.full(len(grown), np.nan)
    per_s[is_good] = grown[is_good] * NS_PER_S / passed_ns[is_good]
    return spans_between(per_s, times_ns, window)


def times_of(lines: Sequence[Line]) -> Times:
    return np.fromiter((line["t_ns"] for line in lines), dtype=np.int64, count=len(lines))


def column(values: Iterable[float | None]) -> Floats:
    """Returns values as an array, None as NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def field_column(lines: Sequence[Line], *names: str) -> Floats:
    """Returns a number of each line, `names` leading through nested objects to it."""
    *objects, last = names
    for name in objects:
        lines = [inner if isinstance(inner := line.get(name), dict) else {} for line in lines]
    return column(known(line.get(last)) for line in lines)


def lines_around(lines: Sequence[Line], window: Window) -> Sequence[Line]:
    """Returns the lines whose spans touch the window, and the one that begins the first span."""
    first = bisect.bisect_right(lines, window.start_ns, key=_time_ns)
    last = bisect.bisect_left(lines, window.end_ns, key=_time_ns)
    return lines[max(0, first - 1) : last + 1]


def _time_ns(line: Line) -> int:
    t_ns: int = line["t_ns"]
    return t_ns
