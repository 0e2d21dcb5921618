"""Forecasts training with other settings of the loaders that it waits for.

The pipeline model plays each loader with the step's compute. Loaders used in the same step prepare
batches concurrently, so the slowest sets the pace. Loaders used in turn, an epoch each, add up.
Epoch starts are played too: with short epochs they decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Rates,
    Setting,
    predict,
    running_of,
)
from trainprof.analysis.timeline.step_table import NEARLY_ALL
from trainprof.findings.gain import faster_steps_gain
from trainprof.findings.loading.waiting import most_workers
from trainprof.findings.run_context import Feeder, RunContext, times_of_part

# Up to this ratio of batches to training iterations, loaders are used in turn. For loaders used in
# the same step the ratio is their number.
_BY_TURNS: Final = 1.25
# Smallest share of compute that remains without the waits for other loaders.
_LEAST_COMPUTE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Modelled:
    """A loader to which the pipeline model applies; `batches` that training used."""

    feeder: Feeder
    inputs: PipelineInputs
    measured: Rates
    batches: int


def modelled(feeding: Sequence[Feeder]) -> list[Modelled]:
    """Returns the loaders to which the model applies, in order."""
    return [
        Modelled(feeder, feeder.inputs, feeder.measured, max(feeder.loader.iterations, 1))
        for feeder in feeding
        if feeder.inputs is not None and feeder.measured is not None and feeder.measured.step_s > 0
    ]


def on_the_cores(loaders: Sequence[Modelled], chosen: Sequence[Setting]) -> list[Setting]:
    """Returns the settings with fewer workers each, if together they exceed the cores."""
    most = max(max(most_workers(loader.inputs), len(loaders)) for loader in loaders)
    total = sum(setting.workers for setting in chosen)
    if total <= most or len(loaders) == 1:
        return list(chosen)
    return [
        setting
        if setting == loader.inputs.setting
        else replace(setting, workers=max(setting.workers * most // total, 1))
        for loader, setting in zip(loaders, chosen, strict=True)
    ]


class LoaderForecast:
    """Forecasts the loaders that training waits for; `settings` have one entry per loader.

    `free_step_s`: step time without waiting for any loader, None if unknown.
    """

    def __init__(
        self, context: RunContext, loaders: Sequence[Modelled], free_step_s: float | None = None
    ) -> None:
        self._context, self._loaders = context, loaders
        batches = sum(loader.batches for loader in loaders)
        self._take_turns = batches <= _BY_TURNS * context.summary.training.iterations
        self._faster = None if free_step_s is None else self._compute_left(free_step_s)

    def batch_s(self, index: int, settings: Sequence[Setting]) -> float:
        """Returns the expected time per batch of one loader, its share of epoch starts included."""
        prediction = predict(self._inputs(index, settings, self._faster or 1.0), settings[index])
        return prediction.step_s.mid + self._starts(index, prediction).mid

    def speedup(self, settings: Sequence[Setting]) -> Interval | None:
        """Returns the speedup of training; None if unknown."""
        kept = self._combined([self._step_s(k, settings) for k in range(len(settings))])
        kept = Interval(*(max(share, self._least_share()) for share in kept.ends()))
        if not 0 < kept.low <= kept.high < np.inf:
            return None
        steps = Interval(1 / kept.high, 1 / kept.mid, 1 / kept.low)
        if self._faster is None:
            waits = sum(x.feeder.wait_share for x in self._loaders)
            steps = faster_steps_gain(self._context, steps, waits)
        return self._over_all_steps(self._with_starts(steps, settings))

    def _over_all_steps(self, speedup: Interval) -> Interval:
        """Returns the speedup of all steps, of which these loaders feed a part."""
        shares = [loader.feeder.steps_share for loader in self._loaders]
        share = min(sum(shares), 1.0) if self._take_turns else max(shares)
        if share >= NEARLY_ALL:
            return speedup
        return Interval(*(times_of_part(times, share) for times in speedup.ends()))

    def _with_starts(self, steps: Interval, settings: Sequence[Setting]) -> Interval:
        """Returns the speedup of training with epoch starts, from that of steps."""
        now = [loader.feeder.now for loader in self._loaders]
        before_s = [
            Interval.exactly(0.0) if x is None else self._starts(k, x) for k, x in enumerate(now)
        ]
        after_s = [
            self._starts(k, predict(self._inputs(k, settings, self._faster or 1.0), setting))
            for k, setting in enumerate(settings)
        ]
        before, after = self._combined(before_s).mid, self._combined(after_s)
        return Interval(
            (1 + before) / (1 / steps.low + after.high),
            (1 + before) / (1 / steps.mid + after.mid),
            (1 + before) / (1 / steps.high + after.low),
        )

    def _combined(self, times: Sequence[Interval]) -> Interval:
        """Returns the combined time per batch, as a share of the recorded step.

        Loaders used in turn add up; of loaders used together the slowest counts.
        """
        shares = [
            [s / x.measured.step_s for s in time.ends()]
            for x, time in zip(self._loaders, times, strict=True)
        ]
        if not self._take_turns:
            return Interval(*map(max, zip(*shares, strict=True)))
        weights = [loader.batches * loader.measured.step_s for loader in self._loaders]
        return Interval(*np.average(shares, axis=0, weights=weights).tolist())

    def _least_share(self) -> float:
        """Returns the least time of a step on its cores, as a share of the recorded step."""
        first = self._loaders[0]
        if self._take_turns or len(self._loaders) == 1:
            return 0.0
        fetched_s = sum(
            float(running_of(loader.inputs, "low").mean()) * loader.batches / first.batches
            for loader in self._loaders
        )
        computed_s = self._own_compute_s(0) * (self._faster or 1.0)
        work_s = fetched_s + computed_s * first.inputs.compute_cores.low
        return work_s / first.inputs.cores / first.measured.step_s

    def _starts(self, index: int, prediction: Prediction) -> Interval:
        """Returns what epoch starts add to a batch of a loader, minus prefetched batches."""
        value = self._loaders[index]
        played, batches = value.inputs.batches, value.feeder.loader.length or value.inputs.batches
        pairs = zip(prediction.epoch_s.ends(), prediction.step_s.ends(), strict=True)
        added = [(epoch_s - played * step_s) / max(batches, played) for epoch_s, step_s in pairs]
        return Interval(min(added), added[1], max(added))

    def _compute_left(self, free_step_s: float) -> float | None:
        """Returns the share of compute time that remains if steps wait for nothing."""
        training, first = self._context.summary.training, self._loaders[0]
        if len(self._loaders) == 1:
            batches, own_s = training.iterations, first.inputs.compute_s.mean()
        elif self._take_turns:
            batches = sum(loader.batches for loader in self._loaders)
            all_s = sum(loader.batches * loader.inputs.compute_s.mean() for loader in self._loaders)
            own_s = all_s / batches
        else:
            batches, own_s = first.batches, self._own_compute_s(0)
        free_s = free_step_s * training.steps
        if not free_s > 0 or not batches * own_s > 0:
            return None
        return min(free_s / float(batches * own_s), 1.0)

    def _waits_for_others_s(self, index: int, settings: Sequence[Setting] | None = None) -> float:
        """Returns the recorded waits for the other loaders per batch of one.

        With `settings`, only for loaders without workers in them.
        """
        if self._take_turns:
            return 0.0
        return sum(
            other.measured.wait_s * other.batches / self._loaders[index].batches
            for k, other in enumerate(self._loaders)
            if k != index and (settings is None or settings[k].workers == 0)
        )

    def _own_compute_s(self, index: int) -> float:
        """Returns compute per batch of a loader, without waits for the others."""
        mean_s = float(self._loaders[index].inputs.compute_s.mean())
        return max(mean_s - self._waits_for_others_s(index), _LEAST_COMPUTE * mean_s)

    def _inputs(self, index: int, settings: Sequence[Setting], faster: float) -> PipelineInputs:
        """Returns a loader's model inputs, with waits for other loaders without workers."""
        inputs = self._loaders[index].inputs
        mean_s = float(inputs.compute_s.mean())
        own_s = self._own_compute_s(index) * faster + self._waits_for_others_s(index, settings)
        return replace(inputs, compute_s=inputs.compute_s * (own_s / mean_s if mean_s > 0 else 1.0))

    def _step_s(self, index: int, settings: Sequence[Setting]) -> Interval:
        """Returns the step time with a batch of this loader.

        Compute is slower in proportion to the waits that remain.
        """
        value = self._loaders[index]
        slow = predict(self._inputs(index, settings, 1.0), settings[index])
        if self._faster is None:
            return slow.step_s
        fast = predict(self._inputs(index, settings, self._faster), settings[index])
        before_s = value.measured.wait_s + self._waits_for_others_s(index)
        remains_s = fast.wait_s.mid + self._waits_for_others_s(index, settings)
        waits = min(max(remains_s / before_s, 0.0), 1.0) if before_s > 0 else 0.0
        pairs = zip(fast.step_s.ends(), slow.step_s.ends(), strict=True)
        return Interval(*(low + (high - low) * waits for low, high in pairs))
