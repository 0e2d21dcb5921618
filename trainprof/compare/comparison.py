"""Two sides of runs: the answer with its interval, and their figures side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.statistics.speedup import LEAST_CHANCE, UNKNOWN, Pace, SpeedUp, speed_up
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.compare.comparability import (
    BATCH_BYTES,
    SCRIPT_TEXT,
    UNFINISHED,
    UNLIKE,
    WORK,
    Difference,
    differences,
)
from trainprof.compare.compared_run import ComparedRun, without_saves

STEP: Final = "step"
SAMPLE: Final = "sample"
PART_PREFIX: Final = "per_step_s."
# Runs of so many times as many steps have other shares of what comes once in a run.
_MANY_MORE: Final = 2.0
# Starts of passes that leave less of what steps gain, on a logarithmic scale, decide.
_LEFT_AT_LEAST: Final = 0.5

PASSED: Final = "passed"
TRIPPED: Final = "tripped"
NOT_JUDGED: Final = "not_judged"
# What a gate is there to judge: an edit of the script, and new libraries under it.
_TESTED: Final = (SCRIPT_TEXT, "torch", "CUDA")
_REPEAT: Final = (
    "record three runs each or more, in turns: trainprof compare --base A1 --base A2 --base A3 "
    "--other B1 --other B2 --other B3"
)

Sides = Sequence[Sequence[ComparedRun]]
Means = tuple[float | None, float | None]
PaceOf = Callable[[ComparedRun], Pace | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of both sides, as means over their runs: `step_s`, `per_step_s.data_wait`.

    `change`: (other - base) / base, with its 95 % interval where it has a verdict.
    """

    name: str
    base: float | None
    other: float | None
    change: float | None
    low: float | None = None
    high: float | None = None
    verdict: str = UNKNOWN


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate says (passed|tripped|not_judged); `limit`: how much longer a step may take.

    `hint`: what makes it judge, None where it did.
    """

    limit: float
    outcome: str
    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """OTHER's runs against BASE's.

    `speedup`: of steady steps, or of samples where steps are not the same work, as `measured_by`
    says; `with_starts` with what starts of passes add, None where it is not known.
    """

    base: list[ComparedRun]
    other: list[ComparedRun]
    differences: list[Difference]
    measured_by: str
    speedup: SpeedUp
    with_starts: SpeedUp | None
    metrics: list[Metric]
    gate: Gate | None = None

    @property
    def comparable(self) -> bool:
        """Nothing but settings differs, and all runs are whole and have steps enough."""
        return not self.of_kind(*UNLIKE, UNFINISHED)

    @property
    def answer(self) -> SpeedUp:
        return _answer(self.speedup, self.with_starts)

    @property
    def verdict(self) -> str:
        """faster|slower|no_visible_difference|unknown."""
        return self.answer.verdict

    def of_kind(self, *kinds: str) -> list[str]:
        return [difference.text for difference in self.differences if difference.kind in kinds]


def compare(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun], *, limit: float | None = None
) -> Comparison:
    """Compares one or more runs of a setting with one or more of another.

    Steps that save checkpoints are left out, where most save none: how many there are depends on
    where a run was ended. `limit`: how much longer a step may take, as a share; None: no gate.
    """
    base, other = ([without_saves(run) for run in side] for side in (base, other))
    listed = differences(base, other)
    sides = [[run for run in side if run.why_unusable() is None] or side for side in (base, other)]
    steps, training = _speedup(sides, ComparedRun.pace), _with_starts(sides)
    samples = _samples(sides, listed)
    by_sample = _by_sample(steps, samples)
    measured_by = SAMPLE if any(difference.kind == WORK for difference in listed) else STEP
    is_by_step = measured_by == STEP
    metrics = [
        _metric("step_s", _means(sides, ComparedRun.mean_step_s), steps if is_by_step else None)
    ]
    if training is not None:
        pace_of = _training_pace(sides)
        means = _means(sides, lambda run: pace.mean_s if (pace := pace_of(run)) else None)
        metrics.append(_metric("step_with_starts_s", means, training if is_by_step else None))
    metrics += [*_rates(sides, samples, by_sample), *_figures(sides)]
    speedup = (steps if is_by_step else by_sample).unless_too_noisy()
    if training is not None:
        training = (training if is_by_step else _by_sample(training, samples)).unless_too_noisy()
    answer = _answer(speedup, training)
    gate = None if limit is None else judged(limit, answer, listed, measured_by)
    return Comparison(base, other, listed, measured_by, speedup, training, metrics, gate)


def _answer(steps: SpeedUp, training: SpeedUp | None) -> SpeedUp:
    """Starts of passes decide where that is certain, and where they eat up what steps gain."""
    if training is None or training.low is None or training.mid is None or steps.mid is None:
        return steps
    if training.is_certain:
        return training
    left = math.log(training.mid) / math.log(steps.mid) if steps.is_certain else 1.0
    return training if left < _LEFT_AT_LEAST else steps


def _speedup(sides: Sides, pace_of: PaceOf) -> SpeedUp:
    for name, side in zip(("BASE", "OTHER"), sides, strict=True):
        why = side[0].why_unusable()
        if why is not None:
            base, other = _means(sides, ComparedRun.mean_step_s)
            ratio = base / other if base and other else None
            return SpeedUp(None, ratio, None, UNKNOWN, None, f"{name} {why}")
    paces = [[pace for run in side if (pace := pace_of(run)) is not None] for side in sides]
    return speed_up(*paces)


def _with_starts(sides: Sides) -> SpeedUp | None:
    """Returns the speed of steady steps with what starts of passes add to them."""
    pace_of = _training_pace(sides)
    for run in (run for side in sides for run in side):
        pace = pace_of(run)
        if pace is None or pace.starts_s is None or run.why_unusable() is not None:
            return None
    return _speedup(sides, pace_of)


def _training_pace(sides: Sides) -> PaceOf:
    """Chooses starts of all passes, or of later ones alone where the runs saw other passes.

    Those are the same in all runs; what comes once in a run is another share of each.
    """
    runs = [run for side in sides for run in side]
    passes = {(run.is_whole, run.series and len(run.series.steps_of_epochs)) for run in runs}
    steps = [run.summary.training.steps for run in runs]
    # The loader's length tells what a pass has that was cut short.
    are_unlike = runs[0].is_whole and max(steps) >= _MANY_MORE * min(steps)
    is_like = len(passes) == 1 and not are_unlike
    return ComparedRun.training_pace if is_like else ComparedRun.later_pace


def _samples(sides: Sides, listed: Sequence[Difference]) -> Means:
    """Returns how many samples a mean step of each side sees, None where nobody counted them.

    Where the size of batches shows that steps are other work, what was asked for is none.
    """
    if any(difference.what == BATCH_BYTES for difference in listed):
        return None, None
    return _means(sides, ComparedRun.samples_per_step)


def _by_sample(speedup: SpeedUp, samples: Means) -> SpeedUp:
    base, other = samples
    if base and other:
        return speedup.times(other / base)
    why = speedup.why_unknown or "a step is not the same work, and samples were not counted"
    return SpeedUp(None, speedup.mid, None, UNKNOWN, None, why)


def _means(sides: Sides, value: Callable[[ComparedRun], float | None]) -> Means:
    """Returns the mean of each side, None where one of its runs has none."""
    base, other = ([value(run) for run in side] for side in sides)
    return _mean(base), _mean(other)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _metric(name: str, means: Means, speedup: SpeedUp | None = None, power: int = -1) -> Metric:
    """Returns a figure; `speedup` speaks of its inverse, or of itself; None: without a verdict."""
    base, other = means
    change = None if base is None or other is None or base <= 0 else other / base - 1
    if speedup is None or speedup.low is None or speedup.high is None:
        return Metric(name, base, other, change)
    low, high = sorted(bound**power - 1 for bound in (speedup.low, speedup.high))
    return Metric(name, base, other, change, low, high, speedup.unless_too_noisy().verdict)


def _rates(sides: Sides, samples: Means, by_sample: SpeedUp) -> list[Metric]:
    base_s, other_s = _means(sides, ComparedRun.mean_step_s)
    if not (samples[0] and samples[1] and base_s and other_s):
        return []
    rates = samples[0] / base_s, samples[1] / other_s
    return [_metric("samples_per_s", rates, by_sample, power=1)]


def _figures(sides: Sides) -> list[Metric]:
    parts = {f"{PART_PREFIX}{key}": _part(key) for key in LEDGER_KEYS}
    figures = ((name, _means(sides, value)) for name, value in (parts | _FIGURES).items())
    return [_metric(name, means) for name, means in figures if any(means)]


def _part(key: str) -> Callable[[ComparedRun], float | None]:
    return lambda run: run.parts_s().get(key, 0.0)


def _median_s(run: ComparedRun) -> float | None:
    step = run.summary.training.step_s
    return None if step is None else step.p50


def _memory_bytes(run: ComparedRun) -> float | None:
    system = run.summary.system
    return None if system is None else number_at(system.memory, "tree_rss_bytes", "max")


_FIGURES: Final[dict[str, Callable[[ComparedRun], float | None]]] = {
    "step_p50_s": _median_s,
    "checkpoints_per_step_s": lambda run: run.checkpoints_s,
    "wall_s": lambda run: run.summary.run.wall_s,
    "memory_peak_bytes": _memory_bytes,
    "device_busy_share": lambda run: run.summary.device_busy_share,
}


def judged(
    limit: float, speedup: SpeedUp, differences: Sequence[Difference], measured_by: str
) -> Gate:
    """Returns whether OTHER takes longer than BASE by more than a limit, a share of BASE's step.

    It trips where the interval's near bound is over the limit. It is not judged where a run broke,
    the sides are not alike, or noise hides more than the limit: that must not look as if all were
    well.
    """
    hindrances = [
        x.text
        for x in differences
        if x.kind in UNLIKE | {UNFINISHED} and not (x.what in _TESTED and x.is_between)
    ]
    if hindrances:
        hint = "record whole runs of the same script, work and machine, at full speed"
        return Gate(limit, NOT_JUDGED, "; ".join(hindrances), hint)
    if speedup.low is None or speedup.mid is None or speedup.high is None:
        why = speedup.why_unknown or "the noise is not known"
        return Gate(limit, NOT_JUDGED, why, _REPEAT)
    least, middle, most = (1 / bound - 1 for bound in (speedup.high, speedup.mid, speedup.low))
    if least > limit:
        return Gate(limit, TRIPPED, f"a {measured_by} takes {longer(least)} at least")
    if most <= limit:
        return Gate(limit, PASSED, f"a {measured_by} takes {longer(most)} at most")
    between = f"{longer(least)} to {longer(most)} would fit"
    # What is finer than a single run can tell is no reason to call a result too noisy.
    tells = max(limit, LEAST_CHANCE)
    if speedup.verdict == UNKNOWN or (middle > tells and middle - least > tells):
        why = f"too noisy to tell: a {measured_by} took {longer(middle)}, but {between}"
        return Gate(limit, NOT_JUDGED, why, _REPEAT)
    why = f"a {measured_by} took {longer(middle)}, not over the limit for certain: {between}"
    return Gate(limit, PASSED, why)


def longer(share: float) -> str:
    """Returns by how much longer a step takes, in words."""
    if share >= 1:
        return f"{1 + share:.3g} times as long"
    return f"{abs(share) * 100:.1f} % {'longer' if share >= 0 else 'less time'}"


def noise_of(comparison: Comparison) -> str | None:
    """Returns what the interval rests on, None where there is none."""
    speedup = comparison.answer
    if speedup.low is None:
        return None
    counts = [
        sum(run.why_unusable() is None for run in s) for s in (comparison.base, comparison.other)
    ]
    if speedup.chance is None:
        return f"{counts[0]} and {counts[1]} runs: the interval is that of their spread"
    share = speedup.chance.share
    under = f"a factor of {1 + share:,.0f}" if share >= 1 else f"{share * 100:.2g} %"
    runs = "one run each" if max(counts) == 1 else f"{counts[0]} and {counts[1]} runs"
    return (
        f"{runs}: differences under {under} can be chance ({speedup.chance.why}); "
        "three runs each tell smaller ones"
    )
