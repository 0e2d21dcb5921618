"""Compares two sides of runs: a verdict with its interval, and the figures of both."""

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
# With this ratio of run lengths, one-time costs have different shares.
_MANY_MORE: Final = 2.0
# Epoch starts decide if they leave less of the steps' gain, on a logarithmic scale.
_LEFT_AT_LEAST: Final = 0.5

PASSED: Final = "passed"
TRIPPED: Final = "tripped"
NOT_JUDGED: Final = "not_judged"
# A gate is there to judge these changes.
_TESTED: Final = (SCRIPT_TEXT, "torch", "CUDA")
_REPEAT: Final = "record 3 runs a side, alternating: trainprof compare --base A1 ... --other B1 ..."

Sides = Sequence[Sequence[ComparedRun]]
Means = tuple[float | None, float | None]
PaceOf = Callable[[ComparedRun], Pace | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of both sides, a mean over runs: `step_s`, `per_step_s.data_wait`.

    `change`: (other - base) / base; `low`, `high`: its 95 % interval, if it has a verdict.
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
    """Outcome of --fail-if-slower: passed|tripped|not_judged.

    `limit`: share by which a step may take longer. `hint`: what to do if not judged.
    """

    limit: float
    outcome: str
    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """OTHER's runs against BASE's.

    `speedup`: of steady steps, or of samples if steps differ in work, as `measured_by` says.
    `with_starts`: the same including epoch starts, None if unknown.
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
        """Whether only settings differ, and all runs completed with enough steps."""
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
    """Compares one or more runs with one or more others.

    Leaves out the few steps that save checkpoints: their number depends on where a run ended.
    `limit`: share by which a step may take longer, None without a gate.
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
    """Returns the speedup with epoch starts, if it is certain or they cancel the steps' gain."""
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
    """Returns the speedup including epoch starts."""
    pace_of = _training_pace(sides)
    for run in (run for side in sides for run in side):
        pace = pace_of(run)
        if pace is None or pace.starts_s is None or run.why_unusable() is not None:
            return None
    return _speedup(sides, pace_of)


def _training_pace(sides: Sides) -> PaceOf:
    """Chooses all epoch starts, or only later ones if runs differ in their number of epochs.

    The first epoch's one-time costs have different shares of runs of different length.
    """
    runs = [run for side in sides for run in side]
    epochs = {(run.is_whole, run.series and len(run.series.steps_of_epochs)) for run in runs}
    steps = [run.summary.training.steps for run in runs]
    # For an epoch that was cut short, len(loader) counts.
    are_unlike = runs[0].is_whole and max(steps) >= _MANY_MORE * min(steps)
    is_like = len(epochs) == 1 and not are_unlike
    return ComparedRun.training_pace if is_like else ComparedRun.later_pace


def _samples(sides: Sides, listed: Sequence[Difference]) -> Means:
    """Returns samples per mean step of each side, None if they were not counted.

    Where batch bytes show different work, the loader's batch_size does not count.
    """
    if any(difference.what == BATCH_BYTES for difference in listed):
        return None, None
    return _means(sides, ComparedRun.samples_per_step)


def _by_sample(speedup: SpeedUp, samples: Means) -> SpeedUp:
    base, other = samples
    if base and other:
        return speedup.times(other / base)
    why = speedup.why_unknown or "steps differ in work, and samples were not counted"
    return SpeedUp(None, speedup.mid, None, UNKNOWN, None, why)


def _means(sides: Sides, value: Callable[[ComparedRun], float | None]) -> Means:
    """Returns the mean of each side, None if a run lacks the value."""
    base, other = ([value(run) for run in side] for side in sides)
    return _mean(base), _mean(other)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _metric(name: str, means: Means, speedup: SpeedUp | None = None, power: int = -1) -> Metric:
    """Returns a figure; `speedup` is of the figure to `power`, None without a verdict."""
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
    """Returns whether OTHER's step takes longer than BASE's by more than `limit`, a share.

    It trips if the whole interval exceeds the limit. It is not judged if a run failed, the sides
    are not comparable, or noise exceeds the limit: that must not pass silently.
    """
    hindrances = [
        x.text
        for x in differences
        if x.kind in UNLIKE | {UNFINISHED} and not (x.what in _TESTED and x.is_between)
    ]
    if hindrances:
        hint = "record complete runs of the same script and work on the same machine"
        return Gate(limit, NOT_JUDGED, "; ".join(hindrances), hint)
    if speedup.low is None or speedup.mid is None or speedup.high is None:
        why = speedup.why_unknown or "the noise is unknown"
        return Gate(limit, NOT_JUDGED, why, _REPEAT)
    least, middle, most = (1 / bound - 1 for bound in (speedup.high, speedup.mid, speedup.low))
    if least > limit:
        return Gate(limit, TRIPPED, f"a {measured_by} takes at least {longer(least)}")
    if most <= limit:
        return Gate(limit, PASSED, f"a {measured_by} takes at most {longer(most)}")
    took = f"a {measured_by} took {longer(middle)}"
    # A limit below the noise of single runs does not make a result too noisy.
    resolved = max(limit, LEAST_CHANCE)
    if speedup.verdict == UNKNOWN or (middle > resolved and middle - least > resolved):
        return Gate(limit, NOT_JUDGED, f"{took}, but noise exceeds the limit", _REPEAT)
    return Gate(limit, PASSED, f"{took}, not certainly over the limit")


def longer(share: float) -> str:
    """Returns "2.5x longer", "12.0 % longer" or "3.0 % less time"."""
    if share >= 1:
        return f"{1 + share:.3g}x longer"
    return f"{abs(share) * 100:.1f} % {'longer' if share >= 0 else 'less time'}"


def noise_of(comparison: Comparison) -> str | None:
    """Returns the base of the interval in a sentence, None without an interval."""
    speedup = comparison.answer
    if speedup.low is None:
        return None
    counts = [
        sum(run.why_unusable() is None for run in s) for s in (comparison.base, comparison.other)
    ]
    if speedup.chance is None:
        return f"the interval is from the spread of {counts[0]} and {counts[1]} runs"
    share = speedup.chance.share
    under = f"{1 + share:,.0f}x" if share >= 1 else f"{share * 100:.2g} %"
    runs = "one run a side" if max(counts) == 1 else f"{counts[0]} and {counts[1]} runs"
    return f"with {runs}, differences under {under} can be noise ({speedup.chance.why})"
