"""A GPU's energy between any two moments, from its driver's counter or from samples of power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainprof.analysis.time_weighted import NS_PER_S, Floats, Times

J_PER_WH: Final = 3600.0
MJ_PER_J: Final = 1000.0
# Power is not drawn on between two samples that are further apart.
MAX_POWER_GAP_NS: Final = 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class PartEnergy:
    """Energy between two moments; all arrays have the shape of the moments.

    Attributes:
        wh: In Wh, of the time that was observed.
        observed_s: That time, in s.
        estimated_s: The part of it known from samples of power.
    """

    wh: Floats
    observed_s: Floats
    estimated_s: Floats


@dataclass(frozen=True, slots=True)
class EnergyCurve:
    """Energy over time. Between two samples power is a straight line, constant under the counter.

    Attributes:
        times_ns: Shape (n,), in ns, not decreasing.
        first_w, last_w: Power at a stretch's ends, shape (n - 1,); NaN where it is not known.
        is_counted: Whether a stretch is known by the counter, shape (n - 1,).
    """

    times_ns: Times
    first_w: Floats
    last_w: Floats
    is_counted: NDArray[np.bool_]

    def between(self, start_ns: Times, end_ns: Times) -> PartEnergy:
        """Returns the energy from each start to its end.

        Args:
            start_ns: Shape (k,), in ns.
            end_ns: Shape (k,), in ns.
        """
        is_known = ~np.isnan(self.first_w)
        first, last = np.where(is_known, self.first_w, 0), np.where(is_known, self.last_w, 0)
        one = np.where(is_known, 1.0, 0.0)
        guessed = np.where(is_known & ~self.is_counted, 1.0, 0.0)
        return PartEnergy(
            self._integral(first, last, start_ns, end_ns) / J_PER_WH,
            self._integral(one, one, start_ns, end_ns),
            self._integral(guessed, guessed, start_ns, end_ns),
        )

    def _integral(self, first: Floats, last: Floats, start_ns: Times, end_ns: Times) -> Floats:
        """Integrates lines from `first` to `last` over each stretch, per second of time."""
        if len(self.times_ns) < 2:
            return np.zeros(len(start_ns))
        spans_s = np.diff(self.times_ns) / NS_PER_S
        before = np.concatenate(([0.0], np.cumsum((first + last) / 2 * spans_s)))

        def until(moments_ns: Times) -> Floats:
            at = np.searchsorted(self.times_ns, moments_ns, side="right") - 1
            at = np.clip(at, 0, len(spans_s) - 1)
            passed_s = np.clip((moments_ns - self.times_ns[at]) / NS_PER_S, 0, spans_s[at])
            slope = np.zeros(len(at))
            is_long = spans_s[at] > 0
            slope[is_long] = (last[at] - first[at])[is_long] / spans_s[at][is_long]
            total: Floats = before[at] + first[at] * passed_s + slope * passed_s**2 / 2
            return total

        between: Floats = until(end_ns) - until(start_ns)
        return between


def energy_curve(times_ns: Times, counter_mj: Floats, power_w: Floats) -> EnergyCurve:
    """Returns the energy over the samples of one device.

    Where the counter stands still or grows, its difference counts. Where it goes back (the driver
    was loaded anew) or is not told, the trapezoid under the samples of power stands in.

    Args:
        times_ns: Shape (n,), in ns, not decreasing.
        counter_mj: Energy since the driver was loaded, shape (n,), in mJ; NaN: not told.
        power_w: Shape (n,), in W; NaN: not told.
    """
    counter_j = _filled(times_ns, counter_mj) / MJ_PER_J
    power_w = _filled(times_ns, np.where(power_w >= 0, power_w, np.nan), MAX_POWER_GAP_NS)
    grown_j, passed_s = np.diff(counter_j), np.diff(times_ns) / NS_PER_S
    is_counted = (grown_j >= 0) & (passed_s > 0)
    counted_w = np.divide(grown_j, passed_s, out=np.full(len(grown_j), np.nan), where=is_counted)
    is_estimated = ~np.isnan(power_w[:-1] + power_w[1:])
    first_w = np.where(is_estimated, power_w[:-1], np.nan)
    last_w = np.where(is_estimated, power_w[1:], np.nan)
    return EnergyCurve(
        times_ns,
        np.where(is_counted, counted_w, first_w),
        np.where(is_counted, counted_w, last_w),
        is_counted,
    )


def _filled(times_ns: Times, values: Floats, max_gap_ns: int | None = None) -> Floats:
    """Returns values with straight lines over what is missing between two that are told."""
    told = np.flatnonzero(~np.isnan(values))
    filled: Floats = values.copy()
    if len(told) < 2:
        return filled
    missing = np.flatnonzero(np.isnan(values))
    missing = missing[(missing > told[0]) & (missing < told[-1])]
    if max_gap_ns is not None:
        after = np.searchsorted(told, missing)
        gaps_ns = times_ns[told[after]] - times_ns[told[after - 1]]
        missing = missing[gaps_ns <= max_gap_ns]
    # From the first sample on: a clock's own value is too large for a float to hold every ns.
    since_ns = times_ns - times_ns[0]
    filled[missing] = np.interp(since_ns[missing], since_ns[told], values[told])
    return filled
