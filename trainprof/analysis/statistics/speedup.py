"""The speedup of one side over the other: a ratio, its 95 % interval, a verdict.

With one run a side, a block bootstrap of its steps estimates the noise inside the run. As steps
cannot show that a whole run was fast or slow, the interval is widened by `chance`: the difference
between two runs of the same script. Repeated runs are the units of Welch's t; the spread of two is
weighed with `chance`. One run against three or more uses their spread, and adds its `chance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, TypeVar

import numpy as np

from trainprof.analysis.statistics.step_noise import (
    NORMAL,
    Floats,
    half_split_drift,
    standard_error,
    t_quantile,
)
from trainprof.analysis.summary.tune import FASTER as FASTER
from trainprof.analysis.summary.tune import NO_VISIBLE_DIFFERENCE as NO_VISIBLE_DIFFERENCE
from trainprof.analysis.summary.tune import SLOWER as SLOWER
from trainprof.analysis.summary.tune import UNKNOWN as UNKNOWN
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS

# Runs of the same script on a machine without other work differ by about 1 % (standard deviation),
# by benchmarks/compare_false_alarms.py: two of them by less than 2.8 % in 95 of 100 cases.
LEAST_CHANCE: Final = 0.035
# Times the difference of a run's halves: two runs differ more than those.
_DRIFT_COUNTS: Final = 2.0
# A wider interval means unknown, not unchanged.
_TOO_WIDE: Final = 1.25
_WIDEST: Final = 50.0  # of a ratio's logarithm
# From this number of runs on, a side alone shows how much runs vary.
_TELLING_REPEATS: Final = 3
# Prior knowledge of a kind of machine counts as a spread with these degrees of freedom.
_CHANCE_DEGREES: Final = 3.0
# Standard deviation of epoch starts: eight pairs on a virtual machine differed by 14 to 45 %.
_STARTS_WANDER: Final = 0.3
_UPPER: Final = 0.975
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one run.

    Attributes:
        mean_s: Of its steady steps, with their share of epoch starts.
        steps_s: Each of them in order of time; None where only the mean is known.
        cycle: Steps after which waits repeat.
        disturbance, wandering: Shares by which other processes, or virtual cores that changed
            their pace, may have made the run longer.
        starts_s: Time that each epoch start adds to a step.
    """

    mean_s: float
    steps_s: Floats | None
    cycle: int = 1
    disturbance: float = 0.0
    wandering: float = 0.0
    starts_s: Floats | None = None

    def error(self) -> float | None:
        """Returns the relative standard error of the mean; None without steps."""
        if self.steps_s is None or len(self.steps_s) == 0:
            return None
        error_s = standard_error(self.steps_s, cycle=self.cycle)
        if self.starts_s is not None and len(self.starts_s):
            error_s = math.hypot(error_s, _error_of_starts(self.starts_s))
        return error_s / self.mean_s


@dataclass(frozen=True, slots=True)
class Chance:
    """The difference between two runs of the same script on such a machine: a share, and why."""

    share: float
    why: str


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """The speedup of OTHER over BASE.

    Attributes:
        low, mid, high: 1.25 is a quarter more steps in the same time.
        verdict: faster|slower|no_visible_difference|unknown.
        chance: The difference of single runs by chance, or of a single run by its disturbances;
            None where more runs show it.
        why_unknown: Why the verdict is unknown.
    """

    low: float | None
    mid: float | None
    high: float | None
    verdict: str
    chance: Chance | None = None
    why_unknown: str | None = None

    @property
    def is_certain(self) -> bool:
        return self.verdict in (FASTER, SLOWER)

    def times(self, factor: float) -> SpeedUp:
        """Returns the same where OTHER's step has `factor` times the work of BASE's."""
        mid = None if self.mid is None else self.mid * factor
        if self.low is None or self.high is None:
            return replace(self, mid=mid)
        low, high = self.low * factor, self.high * factor
        return SpeedUp(low, mid, high, _verdict(low, high), self.chance)

    def unless_too_noisy(self) -> SpeedUp:
        """Returns the same, its verdict `unknown` where it may hide a relevant difference."""
        if self.verdict != NO_VISIBLE_DIFFERENCE or self.low is None or self.high is None:
            return self
        if self.high <= _TOO_WIDE * self.low:
            return self
        why = "runs or their steps vary too much"
        if self.chance is not None and self.chance.share > LEAST_CHANCE:
            why = self.chance.why
        return replace(self, verdict=UNKNOWN, why_unknown=f"too noisy to tell: {why}")


def speed_up(base: Sequence[Pace], other: Sequence[Pace], *, took_turns: bool = False) -> SpeedUp:
    """Returns the speedup of OTHER's runs.

    If the sides `took_turns`, a single run had the same disturbances as the other side's.
    """
    ratio = fmean(pace.mean_s for pace in base) / fmean(pace.mean_s for pace in other)
    lengths = [len(pace.steps_s) for pace in (*base, *other) if pace.steps_s is not None]
    fewest = min(lengths, default=MIN_STEADY_STEPS)
    if fewest < MIN_STEADY_STEPS:
        why = f"{fewest} steady steps are too few, a verdict needs {MIN_STEADY_STEPS}"
        return SpeedUp(None, ratio, None, UNKNOWN, None, why)
    chance = chance_of(base, other)
    if took_turns and lone_of(base, other) is not None:
        chance = replace(chance, share=0.0)
    half = _half_width(base, other, math.log1p(chance.share))
    if half is None:
        why = "single step times are unknown, so is the noise of one run each"
        return SpeedUp(None, ratio, None, UNKNOWN, None, why)
    widening = math.exp(min(half, _WIDEST))
    low, high = ratio / widening, ratio * widening
    rests_on_chance = min(len(base), len(other)) < _TELLING_REPEATS and chance.share > 0
    return SpeedUp(low, ratio, high, _verdict(low, high), chance if rests_on_chance else None)


def _verdict(low: float, high: float) -> str:
    return FASTER if low > 1 else SLOWER if high < 1 else NO_VISIBLE_DIFFERENCE


def are_repeated(base: int, other: int) -> bool:
    """Whether these numbers of runs show how much runs of the same script vary."""
    return min(base, other) >= 2 or max(base, other) >= _TELLING_REPEATS


def lone_of(base: Sequence[T], other: Sequence[T]) -> T | None:
    """Returns the single run of its side, if the other side shows how much runs vary."""
    lone, group = sorted((base, other), key=len)
    return lone[0] if len(lone) == 1 and are_repeated(len(lone), len(group)) else None


def chance_of(base: Sequence[Pace], other: Sequence[Pace]) -> Chance:
    """Returns the difference of single runs by chance: LEAST_CHANCE, or by their disturbances.

    For a single run against three or more it is its disturbance, 0 up to LEAST_CHANCE.
    """
    lone = lone_of(base, other)
    if lone is not None:
        own = max(_met_by(lone), key=lambda chance: chance.share)
        return own if own.share > LEAST_CHANCE else replace(own, share=0.0)
    chances = [Chance(LEAST_CHANCE, "as runs on a quiet machine do")]
    for pace in (*base, *other):
        chances += _met_by(pace)
    for side in (base, other):
        means = [pace.mean_s for pace in side]
        apart = math.log(max(means) / min(means))
        chances.append(Chance(_DRIFT_COUNTS * apart, "as repeated runs differ"))
    return max(chances, key=lambda chance: chance.share)


def _met_by(pace: Pace) -> list[Chance]:
    """Returns the signs that a run may have been faster or slower than usual."""
    chances = [
        Chance(pace.disturbance, "other processes kept the CPU busy"),
        Chance(pace.wandering, "virtual cores may change their pace"),
    ]
    if pace.steps_s is not None and len(pace.steps_s) >= MIN_STEADY_STEPS:
        drift = half_split_drift(pace.steps_s, cycle=pace.cycle)
        chances.append(Chance(_DRIFT_COUNTS * drift, "step times drifted inside a run"))
    return chances


def _error_of_starts(starts_s: Floats) -> float:
    """Returns the standard error of the mean of few runs, scaled to a normal 95 %."""
    count = len(starts_s)
    known = (_STARTS_WANDER * float(np.abs(starts_s).mean())) ** 2
    seen = float(np.var(starts_s, ddof=1)) if count > 1 else 0.0
    variance, degrees = _weighed(seen, count - 1.0, known)
    return t_quantile(_UPPER, degrees) / NORMAL * math.sqrt(variance / count)


def _half_width(base: Sequence[Pace], other: Sequence[Pace], by_chance: float) -> float | None:
    """Returns the half width of the interval of the ratio's logarithm, None where unknown.

    The spread of runs is at least the noise inside them: two may agree by luck.
    """
    inside = [_inside(side) for side in (base, other)]
    if not are_repeated(len(base), len(other)):
        if inside[0] is None or inside[1] is None:
            return None
        error = math.sqrt(inside[0] / len(base) + inside[1] / len(other))
        return math.hypot(NORMAL * error, by_chance)
    variances = [max(_between(s), i or 0.0) for s, i in zip((base, other), inside, strict=True)]
    if min(len(base), len(other)) < 2:
        error = max(variances) * (1 / len(base) + 1 / len(other))
        by_spread = t_quantile(_UPPER, max(len(base), len(other)) - 1.0) * math.sqrt(error)
        return math.hypot(by_spread, by_chance)
    # Two runs differ by at most `chance` in 95 of 100 cases.
    by_machine = (by_chance / NORMAL) ** 2 / 2
    error = weights = 0.0
    for side, variance, noise in zip((base, other), variances, inside, strict=True):
        degrees = len(side) - 1.0
        if len(side) < _TELLING_REPEATS and by_chance > 0:
            variance, degrees = _weighed(variance, degrees, by_machine + (noise or 0.0))
        error += variance / len(side)
        weights += (variance / len(side)) ** 2 / degrees
    together = error * error / weights if weights > 0 else 1.0
    return t_quantile(_UPPER, max(together, 1.0)) * math.sqrt(error)


def _weighed(seen: float, degrees: float, known: float) -> tuple[float, float]:
    """Returns a variance of few figures weighed with a prior one, and its degrees of freedom.

    Source:
        Smyth 2004 (limma), moderated t.
    """
    together = _CHANCE_DEGREES + degrees
    return (_CHANCE_DEGREES * known + degrees * seen) / together, together


def _between(side: Sequence[Pace]) -> float:
    means = np.array([pace.mean_s for pace in side])
    return float(np.var(means, ddof=1)) / float(means.mean()) ** 2 if len(side) > 1 else 0.0


def _inside(side: Sequence[Pace]) -> float | None:
    """Returns the relative variance of a mean by the noise inside runs; None if unknown."""
    errors = [pace.error() for pace in side]
    known = [error**2 for error in errors if error is not None]
    return fmean(known) if len(known) == len(side) else None
