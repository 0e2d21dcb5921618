"""How many times as fast one side is as another: an interval, and what may be said of it.

With several runs on a side the runs are the units, and their spread is the noise. With one run
each the steps tell only the noise inside a run; that a run as a whole came out fast or slow
(clocks, memory layout, page cache, neighbours) they cannot tell, so the interval is widened by
`chance`: what two runs of the same script may differ by. Two runs a side tell a little of it:
their spread and `chance` are weighed against each other. Of a run alone against three or more these
tell how much runs vary, and not what that one met: it keeps its own `chance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, TypeVar

import numpy as np

from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.step_noise import CONFIDENCE, Floats, Resampling, half_split_drift
from trainprof.analysis.student import t_quantile

FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_VISIBLE_DIFFERENCE: Final = "no_visible_difference"
UNKNOWN: Final = "unknown"

# Runs of the same script on a machine of its own differ by about 1 % (standard deviation), as
# benchmarks/compare_false_alarms.py measured: two of them by less than 2.8 % in 95 of 100 cases.
LEAST_CHANCE: Final = 0.035
# Twice what the halves of a run differ by: one run against another is further away than they are.
_DRIFT_COUNTS: Final = 2.0
# From here on (a factor of 4) nobody measured what two equal runs differ by.
BOUNDLESS_CHANCE: Final = 3.0
# An interval so wide says that nothing is known, not that nothing was changed.
_TOO_WIDE: Final = 1.25
# From so many runs on, a side alone tells how much runs vary.
_TELLING_REPEATS: Final = 3
# What is known of machines of a kind counts as much as a spread of so many runs and one more.
_CHANCE_DEGREES: Final = 3.0
# Starts of passes differ by such a share of what they take (standard deviation): of eight pairs of
# them, on a virtual machine, by 14 to 45 %.
_STARTS_WANDER: Final = 0.3
_TAILS: Final = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
# A part that changed by less of a step makes nobody's training faster or slower.
LEAST_SHARE: Final = 0.01
# Small parts (zeroing gradients, a fused loss) differ from run to run by far more than their share
# of the step's difference: of ten equal runs the steps had a standard deviation of 11 %, zeroing
# gradients, 4 % of a step, one of 73 %, which is 3 % of a step.
_PARTS_WANDER: Final = 0.2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one run trained.

    Attributes:
        mean_s: Of its steady steps, with what starts of passes add.
        steps_s: Each of them in order of time, shape (n,); None where only the mean is left.
        starts_s: What starts of passes add to a step, by each of them, shape (n,).
        cycle: Steps after which waits repeat: workers of the loader that feeds training.
        disturbance: Share by which other processes may have made the run longer.
        wandering: Share by which its cores may have changed their pace, out of its sight.
        why_wandering: In words, as a reason.
    """

    mean_s: float
    steps_s: Floats | None
    cycle: int = 1
    disturbance: float = 0.0
    wandering: float = 0.0
    starts_s: Floats | None = None
    why_wandering: str = "a virtual machine's cores change their pace"


@dataclass(frozen=True, slots=True)
class Sampled:
    """A figure of one run.

    Attributes:
        value: The figure.
        draws: What it might have been by the noise inside the run, shape (n,); None: not known.
    """

    value: float
    draws: Floats | None = None


@dataclass(frozen=True, slots=True)
class PartOf:
    """What a figure is a part of.

    Attributes:
        step_s: The mean step of the side whose steps are longer.
        judged: How many parts are judged together: the certainty is that of all of them at once.
    """

    step_s: float
    judged: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How OTHER's figure differs from BASE's, as a share of BASE's, with its 95 % interval.

    Attributes:
        verdict: For figures of which less is faster.
    """

    change: float | None
    low: float | None
    high: float | None
    verdict: str

    def unless_too_noisy(self) -> Difference:
        """Returns the same, its verdict `unknown` where a difference that matters may hide."""
        if self.verdict != NO_VISIBLE_DIFFERENCE or self.low is None or self.high is None:
            return self
        is_wide = 1 + self.high > _TOO_WIDE * (1 + self.low)
        return replace(self, verdict=UNKNOWN) if is_wide else self


@dataclass(frozen=True, slots=True)
class Chance:
    """What two runs of the same script may differ by on a machine like this: a share, and why."""

    share: float
    why: str


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How many times as many steps OTHER makes in the same time.

    Attributes:
        low, mid, high: 1.25 is a quarter more steps; None where it cannot be said.
        verdict: faster|slower|no_visible_difference|unknown.
        chance: What one run each may differ by for no reason, or one alone by what it met; None
            where more runs tell it.
        why_unknown: Why the verdict is unknown.
    """

    low: float | None
    mid: float | None
    high: float | None
    verdict: str
    chance: Chance | None = None
    why_unknown: str | None = None

    @property
    def is_undecided(self) -> bool:
        """Whether there is an interval, and neither side is the faster for certain."""
        return self.low is not None and self.verdict in (NO_VISIBLE_DIFFERENCE, UNKNOWN)

    def unless_too_noisy(self) -> SpeedUp:
        """Returns the same, its verdict `unknown` where a difference that matters may hide."""
        if self.verdict != NO_VISIBLE_DIFFERENCE or self.low is None or self.high is None:
            return self
        if self.high <= _TOO_WIDE * self.low:
            return self
        why = "the runs of a side differ too much among themselves"
        if self.chance is not None:
            why = f"{self.chance.why}, or steps vary too much"
            if self.chance.share <= LEAST_CHANCE:
                why = "step times vary too much"
        return replace(self, verdict=UNKNOWN, why_unknown=f"too noisy to tell: {why}")


def speed_up(base: Sequence[Pace], other: Sequence[Pace], *, took_turns: bool = False) -> SpeedUp:
    """Returns how many times as fast OTHER's runs train.

    Args:
        base: Runs of one setting, one or more.
        other: Runs of the other.
        took_turns: The sides were run in turns: a run alone met what those of the other side did.
    """
    middle = _mean_step(base) / _mean_step(other)
    short = [p for p in (*base, *other) if p.steps_s is not None]
    fewest = min((len(p.steps_s) for p in short if p.steps_s is not None), default=None)
    if fewest is not None and fewest < MIN_STEADY_STEPS:
        why = f"{fewest} steady steps are not enough, a verdict takes {MIN_STEADY_STEPS}"
        return SpeedUp(None, middle, None, UNKNOWN, None, why)
    chance = chance_of(base, other)
    if took_turns and lone_of(base, other) is not None:
        chance = replace(chance, share=0.0)
    found = difference(
        [sampled_mean(pace, number) for number, pace in enumerate(base)],
        [sampled_mean(pace, len(base) + number) for number, pace in enumerate(other)],
        chance=chance.share,
    )
    if found.low is None or found.high is None:
        why = "what the single steps took is not known: one run each tells nothing of its noise"
        return SpeedUp(None, middle, None, UNKNOWN, None, why)
    return SpeedUp(
        1 / (1 + found.high),
        middle,
        1 / (1 + found.low),
        found.verdict,
        chance if rests_on_chance(len(base), len(other)) and chance.share > 0 else None,
    )


def are_repeated(base: int, other: int) -> bool:
    """Tells whether so many runs a side tell how much runs of the same script vary."""
    return min(base, other) >= 2 or max(base, other) >= _TELLING_REPEATS


def rests_on_chance(base: int, other: int) -> bool:
    """Tells whether so many runs a side tell too little without what they may differ by."""
    return min(base, other) < _TELLING_REPEATS


def lone_of(base: Sequence[T], other: Sequence[T]) -> T | None:
    """Returns the run that is alone on its side, where the other side tells how much runs vary."""
    lone, group = sorted((base, other), key=len)
    return lone[0] if len(lone) == 1 and are_repeated(len(lone), len(group)) else None


def chance_of(base: Sequence[Pace], other: Sequence[Pace]) -> Chance:
    """Returns what one run each may differ by for no reason.

    LEAST_CHANCE; more where the halves of a run differ by more than their noise explains, where
    others kept the machine's cores busy, where the cores are virtual ones, or where two runs of a
    side differ by more. Of a run alone against three or more it is what that one met, 0 where that
    is no more than LEAST_CHANCE: the others tell it.
    """
    lone = lone_of(base, other)
    if lone is not None:
        own = max(_met_by(lone), key=lambda one: one.share)
        return own if own.share > LEAST_CHANCE else replace(own, share=0.0)
    found = [Chance(LEAST_CHANCE, "as runs on a quiet machine do")]
    for pace in (*base, *other):
        found += _met_by(pace)
    for side in (base, other):
        means = [pace.mean_s for pace in side]
        if min(means) > 0:
            apart = math.log(max(means) / min(means))
            found.append(Chance(_DRIFT_COUNTS * apart, "repeated runs differ so much"))
    return max(found, key=lambda one: one.share)


def _met_by(pace: Pace) -> list[Chance]:
    """Returns what a run itself shows that may have made it faster or slower."""
    found = [
        Chance(pace.disturbance, "other processes kept the CPU busy"),
        Chance(pace.wandering, pace.why_wandering),
    ]
    if pace.steps_s is not None and len(pace.steps_s) >= MIN_STEADY_STEPS:
        drift = half_split_drift(pace.steps_s, cycle=pace.cycle)
        found.append(Chance(_DRIFT_COUNTS * drift, "step times drifted inside a run"))
    return found


def sampled_mean(pace: Pace, seed: int) -> Sampled:
    """Returns a run's mean step with what its noise makes of it; `seed` another for each run."""
    if pace.steps_s is None or len(pace.steps_s) == 0:
        return Sampled(pace.mean_s)
    draws = Resampling(pace.steps_s, cycle=pace.cycle, seed=seed).means(pace.steps_s)
    if pace.starts_s is not None and len(pace.starts_s):
        random = np.random.default_rng([seed, len(draws)])
        error_s = _error_of_starts(pace.starts_s) * random.standard_normal(len(draws))
        draws = draws + pace.starts_s.mean() + error_s
    return Sampled(pace.mean_s, draws)


def _error_of_starts(starts_s: Floats) -> float:
    """Returns the standard error of their mean, so wide that 1.96 of it hold 95 %: they are few."""
    count = len(starts_s)
    known = (_STARTS_WANDER * float(np.abs(starts_s).mean())) ** 2
    seen = float(np.var(starts_s, ddof=1)) if count > 1 else 0.0
    variance, degrees = _weighed(seen, count - 1.0, known)
    widening = t_quantile(_TAILS[1], degrees) / _normal_quantile(_TAILS[1])
    return widening * math.sqrt(variance / count)


def difference(
    base: Sequence[Sampled],
    other: Sequence[Sampled],
    *,
    chance: float,
    is_part: bool = False,
    of: PartOf | None = None,
) -> Difference:
    """Returns how a figure differs between two sides, one or more runs each.

    Args:
        base: The figure in each run of BASE.
        other: The same of OTHER.
        chance: The share that `chance_of` gives, for where a side has two runs at most; 0 where it
            is not known.
        is_part: A part of something, which may be nothing or less; else all are above 0 and differ
            by a factor.
        of: The step that it is a part of, if it is one.

    Returns:
        Its change and interval, as shares of BASE's; None where one of the means is below 0.

    Source:
        Of several parts judged together: Bonferroni's correction.
    """
    values_b = np.array([one.value for one in base])
    values_o = np.array([one.value for one in other])
    mean_b, mean_o = float(values_b.mean()), float(values_o.mean())
    by_factor = not is_part and of is None and min(values_b.min(), values_o.min()) > 0
    judged = 1 if of is None else of.judged
    apart = math.log(mean_o / mean_b) if by_factor else mean_o - mean_b
    by_chance = math.log1p(chance)
    if not by_factor:
        # The larger of two parts may be so many times too large, as a whole may.
        share = chance / (1 + chance)
        by_chance = share * max(abs(mean_b), abs(mean_o))
        if of is not None:
            by_chance = math.hypot(by_chance, share * _PARTS_WANDER * of.step_s)
    spread = _spread(base, other, by_factor, by_chance, judged)
    if spread is None:
        change = math.expm1(apart) if by_factor else _relative(apart, mean_b)
        return Difference(change, None, None, UNKNOWN)
    below, above = spread
    low, high = apart - below, apart + above
    verdict = FASTER if high < 0 else SLOWER if low > 0 else NO_VISIBLE_DIFFERENCE
    if of is not None and abs(apart) < LEAST_SHARE * of.step_s:
        verdict = NO_VISIBLE_DIFFERENCE
    if by_factor:
        return Difference(math.expm1(apart), math.expm1(low), math.expm1(high), verdict)
    if mean_o < 0:
        # What may be less than nothing (a start of a pass that saves time) has no share of itself.
        return Difference(None, None, None, verdict)
    # A part cannot become less than nothing.
    least = max(low, -mean_b)
    return Difference(
        _relative(apart, mean_b), _relative(least, mean_b), _relative(high, mean_b), verdict
    )


def _relative(value: float, mean: float) -> float | None:
    return value / mean if mean > 0 else None


def _tail(judged: int) -> float:
    """Returns the share of certainty below the upper bound of one of so many intervals."""
    return 1 - _TAILS[0] / judged


def _widening(judged: int) -> float:
    """Returns how much wider an interval is that is one of so many."""
    return _normal_quantile(_tail(judged)) / _normal_quantile(_TAILS[1])


def _normal_quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)


def _spread(
    base: Sequence[Sampled],
    other: Sequence[Sampled],
    by_factor: bool,
    by_chance: float,
    judged: int,
) -> tuple[float, float] | None:
    """Returns how far the interval reaches to both sides, None where that is not known.

    Args:
        by_chance: What one run each may differ by for no reason, as the interval is measured.
    """
    if are_repeated(len(base), len(other)):
        half = _half_between_runs(base, other, by_factor, by_chance, judged)
        return half, half
    sides = []
    for side in (base, other):
        draws = [_scaled(one.draws, by_factor) for one in side if one.draws is not None]
        if len(draws) < len(side):
            return None
        fewest = min(map(len, draws))
        sides.append(np.mean([draw[:fewest] for draw in draws], axis=0))
    fewest = min(map(len, sides))
    drawn = sides[1][:fewest] - sides[0][:fewest]
    middle = float(drawn.mean())
    low, high = np.quantile(drawn, _TAILS).tolist()
    wider = _widening(judged)  # the tails of the draws themselves hold too few of them
    below, above = math.hypot(middle - low, by_chance), math.hypot(high - middle, by_chance)
    return below * wider, above * wider


def _half_between_runs(
    base: Sequence[Sampled],
    other: Sequence[Sampled],
    by_factor: bool,
    by_chance: float,
    judged: int,
) -> float:
    """Welch's interval of the means of two groups of runs.

    A group of one takes its spread from the other, and what it met by chance comes on top. No
    spread is smaller than the noise inside runs makes it: two runs may agree by luck. The spread of
    two is weighed with what is known of such machines: the interval would be many times too wide
    otherwise.
    """
    variances = [_variance(side, by_factor) for side in (base, other)]
    if min(len(base), len(other)) < 2:
        error = max(variances) * (1 / len(base) + 1 / len(other))
        degrees = max(len(base), len(other)) - 1.0
        by_spread = t_quantile(_tail(judged), degrees) * math.sqrt(error)
        return math.hypot(by_spread, by_chance * _widening(judged))
    # Two runs differ by as much as chance lets them in 95 of 100 cases.
    by_machine = (by_chance / _normal_quantile(_TAILS[1])) ** 2 / 2
    error = weights = 0.0
    for side, variance in zip((base, other), variances, strict=True):
        degrees = len(side) - 1.0
        if len(side) < _TELLING_REPEATS and by_chance > 0:
            known = by_machine + _variance_inside(side, by_factor)
            variance, degrees = _weighed(variance, degrees, known)
        error += variance / len(side)
        weights += (variance / len(side)) ** 2 / degrees
    together = error * error / weights if weights > 0 else 1.0
    return t_quantile(_tail(judged), max(together, 1.0)) * math.sqrt(error)


def _weighed(seen: float, degrees: float, known: float) -> tuple[float, float]:
    """Returns a variance of few figures weighed with one known beforehand, and its degrees.

    Source:
        Smyth 2004 (limma), moderated t.
    """
    together = _CHANCE_DEGREES + degrees
    return (_CHANCE_DEGREES * known + degrees * seen) / together, together


def _variance(side: Sequence[Sampled], by_factor: bool) -> float:
    """Returns that of a run's figure, or of its logarithm, to first order."""
    values = np.array([one.value for one in side])
    between = float(np.var(values, ddof=1)) if len(side) > 1 else 0.0
    if by_factor:
        between /= float(values.mean()) ** 2
    return max(between, _variance_inside(side, by_factor))


def _variance_inside(side: Sequence[Sampled], by_factor: bool) -> float:
    """Returns that by the noise inside runs, of the figure or of its logarithm."""
    draws = [np.var(one.draws) for one in side if one.draws is not None]
    inside = float(np.mean(draws)) if draws else 0.0
    return inside / float(np.mean([one.value for one in side])) ** 2 if by_factor else inside


def _scaled(draws: Floats, by_factor: bool) -> Floats:
    if not by_factor:
        return draws
    least = float(draws.mean()) * 1e-3  # of very few steps a widened draw may lie below 0
    return np.log(np.maximum(draws, least))


def _mean_step(side: Sequence[Pace]) -> float:
    return float(np.mean([pace.mean_s for pace in side]))
