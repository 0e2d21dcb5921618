"""The figures of two sides of runs, each with what it changed by and how sure that is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, TypeVar

import numpy as np

from trainprof.analysis.comparability import Discrepancy
from trainprof.analysis.comparable_facts import BATCH_BYTES, SLOWED, STEPS, WORK
from trainprof.analysis.compared_metrics import RUN_METRICS, RunMetric, loader_metrics
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.ledger import LOADER_KEYS
from trainprof.analysis.run_figures import LEDGER_KEYS
from trainprof.analysis.speedup import (
    BOUNDLESS_CHANCE,
    LEAST_CHANCE,
    LEAST_SHARE,
    UNKNOWN,
    Chance,
    Difference,
    Pace,
    PartOf,
    Sampled,
    SpeedUp,
    are_repeated,
    chance_of,
    difference,
    lone_of,
    speed_up,
)
from trainprof.analysis.step_noise import Resampling

STEP_GROUP: Final = "step"
LEDGER_GROUP: Final = "ledger"
BY_STEP: Final = "step"
BY_SAMPLE: Final = "sample"
T = TypeVar("T")
LOWER, HIGHER = "lower", "higher"
PART_PREFIX: Final = "per_step_s."
STARTS: Final = "starts_per_step_s"
BETWEEN_PASSES: Final = "between_passes_per_step_s"
# Starting processes and opening files takes longer or shorter from run to run than computing.
_STARTS_CHANCE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of both sides.

    Attributes:
        name: A path of words, with its unit at the end: `step_s`, `per_step_s.data_wait`.
        group: step|ledger|run|loader|machine.
        base, other: Means over a side's runs; None where not observed.
        change: (other - base) / base; None where base is 0 or one of them is not known.
        low, high: Its 95 % interval, None where nothing tells it.
        verdict: faster|slower|no_visible_difference; unknown also of figures that are no times.
        better: lower|higher, None where neither is.
    """

    name: str
    group: str
    base: float | None
    other: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: str
    better: str | None


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides and what hinders a verdict on them."""

    base: list[ComparedRun]
    other: list[ComparedRun]
    found: list[Discrepancy]
    chance: Chance

    @property
    def is_other_work(self) -> bool:
        return any(one.kind == WORK for one in self.found)

    def runs(self) -> tuple[list[ComparedRun], list[ComparedRun]]:
        """Runs that tell how fast they are; on a side without any, all of it."""
        return _telling(self.base), _telling(self.other)

    def samples(self) -> list[float | None]:
        """Returns how many samples a mean step of each side sees, None where nobody counted them.

        Where the size of batches tells that steps are other work, what was asked for is none.
        """
        if any(one.what == BATCH_BYTES for one in self.found):
            return [None, None]
        return [_mean_samples(side) for side in self.runs()]

    def host_chance(self, least: float) -> float:
        """Returns what the host's own work may differ by from run to run.

        `least`, or more where others or virtual cores change the host's pace. Of a run alone
        against a group that tells how much runs vary, what that one met: 0 where it is little.
        """
        base, other = self.runs()
        lone = lone_of(base, other)
        if lone is None:
            return max(least, *(run.host_chance() for run in (*base, *other)))
        met = lone.host_chance()
        return met if met > LEAST_CHANCE else 0.0

    def longer_step_s(self) -> float:
        """Returns the mean step of the side whose steps are longer, 0 where none is known."""
        told = [_mean([run.mean_step_s() for run in side]) for side in self.runs()]
        return max((mean for mean in told if mean is not None), default=0.0)

    def why_unknown(self) -> str | None:
        slowed = next((one for one in self.found if one.kind == SLOWED), None)
        if slowed is not None:
            return slowed.text
        for name, side in (("BASE", self.base), ("OTHER", self.other)):
            if not any(run.is_telling() for run in side):
                return f"too few steady steps in {name}"
        counts = [len(side) for side in self.runs()]
        if self.chance.share >= BOUNDLESS_CHANCE and min(counts) < 2:
            each = "" if are_repeated(*counts) else " each"
            return f"{self.chance.why}, too much for one run{each} to tell"
        return None

    def speedup(self, measured_by: str) -> SpeedUp:
        why = self.why_unknown()
        paces = [_paces(side, ComparedRun.pace) for side in self.runs()]
        if any(side is None for side in paces):
            return SpeedUp(None, None, None, UNKNOWN, None, why or "no steady step was seen")
        return self._speedup(paces[0] or [], paces[1] or [], measured_by, why)

    def have_like_passes(self) -> bool:
        """Whether all runs went through as many passes, and to their own end or all cut short.

        Else what comes once in a run or a pass is another share of each.
        """
        runs = [run for side in self.runs() for run in side]
        if len({(run.passes(), run.is_whole) for run in runs}) > 1:
            return False
        # The loader's length tells what a pass has that was cut short.
        return not (runs[0].is_whole and any(one.what == STEPS for one in self.found))

    def with_starts(self, measured_by: str) -> SpeedUp | None:
        """Returns the speed of steady steps with what starts of passes add to them.

        Of runs that saw other passes, with those of later passes alone, which are the same in all;
        None where not all runs saw the like.
        """
        is_like = self.have_like_passes()
        pace_of = ComparedRun.training_pace if is_like else ComparedRun.later_pace
        paces = [_paces(side, pace_of) for side in self.runs()]
        if any(side is None for side in paces) or self.why_unknown() is not None:
            return None
        if not all(pace.starts_s is not None for side in paces for pace in side or ()):
            return None
        return self._speedup(paces[0] or [], paces[1] or [], measured_by, None)

    def with_borders(self, measured_by: str) -> SpeedUp | None:
        """Returns the speed of all steps, without a verdict on runs that saw other passes."""
        paces = [_paces(side, ComparedRun.loop_pace) for side in self.runs()]
        if any(side is None for side in paces) or self.why_unknown() is not None:
            return None
        why = None if self.have_like_passes() else "the sides went through other passes"
        if any(run.checkpoints_s for side in self.runs() for run in side):
            why = "the sides saved checkpoints at other rates"
        return self._speedup(paces[0] or [], paces[1] or [], measured_by, why)

    def _speedup(
        self, base: list[Pace], other: list[Pace], measured_by: str, why: str | None
    ) -> SpeedUp:
        if measured_by == BY_SAMPLE:
            samples = self.samples()
            if samples[0] is None or samples[1] is None:
                why = why or "a step is not the same work, and samples were not counted"
            else:
                base = [_per_sample(pace, samples[0]) for pace in base]
                other = [_per_sample(pace, samples[1]) for pace in other]
        found = speed_up(base, other)
        if why is None:
            return found.unless_too_noisy()
        return SpeedUp(None, found.mid, None, UNKNOWN, None, why)


def _telling(side: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Returns the runs that tell how fast they are, all where none does."""
    return [run for run in side if run.is_telling()] or list(side)


def chance_between(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> Chance:
    """Returns what one run each may differ by; 1 where no step tells it."""
    sides = [_telling(side) for side in (base, other)]
    paces = [[pace for run in side if (pace := run.pace()) is not None] for side in sides]
    return chance_of(*paces) if all(paces) else Chance(1.0, "no steady step was seen")


def _paces(
    side: Sequence[ComparedRun], pace_of: Callable[[ComparedRun], Pace | None]
) -> list[Pace] | None:
    """None where one run has no pace."""
    paces = [pace for run in side if (pace := pace_of(run)) is not None]
    return paces if len(paces) == len(side) and paces else None


def _mean_samples(side: Sequence[ComparedRun]) -> float | None:
    told = [samples for run in side if (samples := run.samples_of_a_steady_step()) is not None]
    return fmean(told) if len(told) == len(side) else None


def _per_sample(pace: Pace, samples: float) -> Pace:
    steps_s = None if pace.steps_s is None else pace.steps_s / samples
    starts_s = None if pace.starts_s is None else pace.starts_s / samples
    return replace(pace, mean_s=pace.mean_s / samples, steps_s=steps_s, starts_s=starts_s)


def step_metrics(sides: Sides) -> list[Metric]:
    """A steady step's mean and quantiles, samples, all steps, and starts of passes."""
    base, other = sides.runs()
    step = sides.speedup(BY_STEP)
    sample = sides.speedup(BY_SAMPLE)
    by_step = UNKNOWN if sides.is_other_work else None
    times = [[run.mean_step_s() for run in side] for side in (base, other)]
    metrics = [_of_time("step_s", times, step, verdict=by_step)]
    metrics += _quantile_metrics(sides, verdict=by_step)
    samples = sides.samples()
    means = [_mean(side) for side in times]
    if None not in (*samples, *means):
        per_sample = [m / s for m, s in zip(means, samples, strict=True) if m and s]
        metrics.append(_of_time("sample_s", [[one] for one in per_sample], sample))
        metrics.append(_of_rate("samples_per_s", [1 / one for one in per_sample], sample))
    borders = sides.with_borders(BY_STEP)
    if borders is not None:
        all_steps = [
            [float(run.series.all_s.mean()) for run in side if run.series is not None]
            for side in (base, other)
        ]
        metrics.append(_of_time("loop_step_s", all_steps, borders, verdict=by_step))
    metrics += _later_metric(STARTS, ComparedRun.starts, sides, verdict=by_step)
    # Of runs without any work between passes it is what steps differ by for no reason.
    of = PartOf(sides.longer_step_s(), 1)
    between = ComparedRun.between_passes
    return [*metrics, *_later_metric(BETWEEN_PASSES, between, sides, verdict=by_step, of=of)]


def _of_each(sides: Sides, drawn: Callable[[ComparedRun, int], T]) -> list[list[T]]:
    """Returns what each run of both sides gives, each with a seed of its own."""
    seeds = itertools.count()
    return [[drawn(run, next(seeds)) for run in side] for side in sides.runs()]


def _later_metric(
    name: str,
    added: Callable[[ComparedRun, int], Sampled | None],
    sides: Sides,
    *,
    verdict: str | None,
    of: PartOf | None = None,
) -> list[Metric]:
    """What later passes add to a step: a change of the loader may show where they start alone."""
    base, other = sides.runs()
    drawn = _of_each(sides, added)
    figures = [[one for one in side if one is not None] for side in drawn]
    if [len(side) for side in figures] != [len(base), len(other)]:
        return []
    # That steps drifted inside a run says nothing of them, and they are the host's work.
    chance = sides.host_chance(_STARTS_CHANCE)
    found = difference(figures[0], figures[1], chance=chance, is_part=True, of=of)
    # By chance a pass begins faster than its steps go on, which is no time that a start saves.
    means = [max(fmean(one.value for one in side), 0.0) for side in figures]
    return [_metric(name, STEP_GROUP, means, found, sides, LOWER, verdict)]


def _of_time(
    name: str,
    values: Sequence[Sequence[float | None]],
    found: SpeedUp,
    *,
    verdict: str | None = None,
) -> Metric:
    """A time whose inverse `found` speaks of."""
    base, other = (_mean(side) for side in values)
    change = _relative_change(base, other)
    low = None if found.high is None else 1 / found.high - 1
    high = None if found.low is None else 1 / found.low - 1
    return Metric(name, STEP_GROUP, base, other, change, low, high, verdict or found.verdict, LOWER)


def _of_rate(name: str, values: Sequence[float], found: SpeedUp) -> Metric:
    base, other = values
    low = None if found.low is None else found.low - 1
    high = None if found.high is None else found.high - 1
    change = _relative_change(base, other)
    return Metric(name, STEP_GROUP, base, other, change, low, high, found.verdict, HIGHER)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _relative_change(base: float | None, other: float | None) -> float | None:
    return None if base is None or other is None or base <= 0 else other / base - 1


_QUANTILES: Final = {"step_p50_s": 0.5, "step_p95_s": 0.95}
# Slow steps differ more from run to run than the mean does: of the ten equal runs of two_ms.py by
# a standard deviation of 16 %, where the mean had 11.
_CHANCE_OF_QUANTILE: Final = {"step_p50_s": 1.0, "step_p95_s": 1.5}


def _quantile_metrics(sides: Sides, *, verdict: str | None) -> list[Metric]:
    base, other = sides.runs()
    drawn = _of_each(sides, _quantiles_of)
    metrics = []
    for place, name in enumerate(_QUANTILES):
        figures = [[run[place] for run in side if run is not None] for side in drawn]
        is_known = [len(side) for side in figures] == [len(base), len(other)]
        if not is_known:
            continue
        chance = sides.chance.share * _CHANCE_OF_QUANTILE[name]
        found = difference(figures[0], figures[1], chance=chance).unless_too_noisy()
        means = [_mean([one.value for one in side]) for side in figures]
        metrics.append(_metric(name, STEP_GROUP, means, found, sides, LOWER, verdict))
    return metrics


def _quantiles_of(run: ComparedRun, seed: int) -> list[Sampled] | None:
    step = run.summary.training.step_s
    if run.series is None or len(run.series.steady_s) == 0:
        return None if step is None else [Sampled(step.p50), Sampled(step.p95)]
    steps = run.series.steady_s
    values = np.quantile(steps, list(_QUANTILES.values())).tolist()
    draws = Resampling(steps, cycle=run.cycle(), seed=seed).quantiles(list(_QUANTILES.values()))
    return [Sampled(value, drawn) for value, drawn in zip(values, draws, strict=True)]


def _metric(
    name: str,
    group: str,
    means: Sequence[float | None],
    found: Difference,
    sides: Sides,
    better: str | None,
    verdict: str | None = None,
) -> Metric:
    base, other = means
    if sides.why_unknown() is not None:
        return Metric(name, group, base, other, found.change, None, None, UNKNOWN, better)
    told = verdict or found.verdict
    return Metric(name, group, base, other, found.change, found.low, found.high, told, better)


def ledger_metrics(sides: Sides) -> list[Metric]:
    """What a steady step consists of; values as reports have them, noise from the steps."""
    base, other = sides.runs()
    told = [[run.summary.training.per_step_s for run in side] for side in (base, other)]
    if any(parts is None for side in told for parts in side):
        return []
    resampled = _of_each(sides, _resampling)
    verdict = UNKNOWN if sides.is_other_work else None
    step_s = sides.longer_step_s()
    least_s = LEAST_SHARE * step_s
    judged = [key for key in LEDGER_KEYS if max(_means_of(key, told), default=0.0) >= least_s]
    of = PartOf(step_s, max(len(judged), 1))
    metrics = []
    for key in LEDGER_KEYS:
        figures = [
            [
                _part(run, drawing, key, (parts or {}).get(key, 0.0))
                for run, drawing, parts in zip(runs, drawings, of_side, strict=True)
            ]
            for runs, drawings, of_side in zip((base, other), resampled, told, strict=True)
        ]
        means = [fmean(one.value for one in side) for side in figures]
        if not any(means):
            continue
        found = difference(figures[0], figures[1], chance=_chance_of_part(key, sides), of=of)
        name = f"{PART_PREFIX}{key}"
        metrics.append(_metric(name, LEDGER_GROUP, means, found, sides, LOWER, verdict))
    return metrics


def _chance_of_part(key: str, sides: Sides) -> float:
    """Returns what a part of single runs' steps may differ by; loading is the host's alone."""
    if key not in LOADER_KEYS:
        return sides.chance.share
    return max(sides.chance.share, sides.host_chance(0.0))


def _means_of(key: str, told: Sequence[Sequence[Mapping[str, float] | None]]) -> list[float]:
    """Returns a part's mean over each side's runs."""
    return [fmean((parts or {}).get(key, 0.0) for parts in side) for side in told]


def _resampling(run: ComparedRun, seed: int) -> Resampling | None:
    if run.series is None or len(run.series.steady_s) == 0:
        return None
    return Resampling(run.series.steady_s, cycle=run.cycle(), seed=seed)


def _part(run: ComparedRun, drawing: Resampling | None, key: str, value: float) -> Sampled:
    if drawing is None or run.series is None:
        return Sampled(value)
    column = run.series.parts_s.get(key)
    if column is None or not column.any():
        column = np.zeros(len(run.series.steady_s))
    draws = drawing.means(column)
    # Of several ranks the value is their mean, the noise that of the first.
    return Sampled(value, draws - float(column.mean()) + value)


def run_metrics(sides: Sides) -> list[Metric]:
    """Figures that a run has one of: the whole run, loaders, the machine."""
    metrics = [*RUN_METRICS, *loader_metrics(sides.base, sides.other)]
    of = PartOf(sides.longer_step_s(), sum(metric.is_time for metric in metrics))
    return [made for metric in metrics if (made := _run_metric(metric, sides, of)) is not None]


def _run_metric(metric: RunMetric, sides: Sides, of: PartOf) -> Metric | None:
    values = [[metric.value(run) for run in side] for side in (sides.base, sides.other)]
    known = [[value for value in side if value is not None] for side in values]
    if not any(known):
        return None
    means = [fmean(side) if side else None for side in known]
    base, other = means
    if base is None or other is None:
        return Metric(
            metric.name, metric.group, base, other, None, None, None, UNKNOWN, metric.better
        )
    figures = [[Sampled(value) for value in side] for side in known]
    chance = 0.0 if lone_of(*known) is None else sides.host_chance(0.0)
    found = difference(
        figures[0], figures[1], chance=chance, is_part=True, of=of if metric.is_time else None
    )
    is_time = metric.is_time and not sides.is_other_work
    verdict = None if is_time else UNKNOWN
    return _metric(metric.name, metric.group, means, found, sides, metric.better, verdict)
