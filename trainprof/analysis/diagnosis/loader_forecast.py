"""What training will be with other settings of the loaders that it waits for.

Each is played through the pipeline model by itself, with what a step computes; then they are put
together. Loaders that are asked one after the other in every step make batches at the same time:
the slowest sets the pace. Those that take turns, pass by pass, are each as fast as they are. What
starts of passes add is played as well: with short passes it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.diagnosis.case import Case, LoaderCase, times_of_part
from trainprof.analysis.diagnosis.gains import of_faster_steps
from trainprof.analysis.diagnosis.waiting import most_workers
from trainprof.analysis.fed_steps import NEARLY_ALL
from trainprof.analysis.pipeline import Interval, PipelineInputs, Prediction, Setting, predict
from trainprof.analysis.pipeline_rates import Rates
from trainprof.analysis.pipeline_scenario import running_of

# Batches of loaders that take turns are so many times a training's, those of loaders side by side
# as many times as there are loaders.
_BY_TURNS: Final = 1.25
# Of what a step computes: what is left of it at least without the waits for other loaders.
_LEAST_COMPUTE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Modelled:
    """A loader to which the pipeline model applies.

    Attributes:
        inputs, measured: As LoaderCase has them.
        batches: That training took of it.
    """

    fed: LoaderCase
    inputs: PipelineInputs
    measured: Rates
    batches: int


def modelled(feeding: Sequence[LoaderCase]) -> list[Modelled]:
    """Returns the loaders to which the model applies, in the same order."""
    return [
        Modelled(one, one.inputs, one.measured, max(one.loader.iterations, 1))
        for one in feeding
        if one.inputs is not None and one.measured is not None and one.measured.step_s > 0
    ]


def on_the_cores(loaders: Sequence[Modelled], chosen: Sequence[Setting]) -> list[Setting]:
    """Returns the settings with fewer workers each where all of them are more than can run."""
    most = max(max(most_workers(one.inputs), len(loaders)) for one in loaders)
    total = sum(setting.workers for setting in chosen)
    if total <= most or len(loaders) == 1:
        return list(chosen)
    return [
        setting
        if setting == one.inputs.setting
        else replace(setting, workers=max(setting.workers * most // total, 1))
        for one, setting in zip(loaders, chosen, strict=True)
    ]


class LoaderForecast:
    """The loaders of a run in other settings; settings are given for all of them, in their order.

    Args:
        case: The run.
        loaders: That training waits for.
        free_step_s: What a step takes where it waits for none of them, None where that is unknown:
            a thread that never waits computes faster, and no recording tells by how much.
        felt: Share of the waits in which a device had nothing to do: steps get no shorter than it
            takes for them. None without one.
    """

    def __init__(
        self,
        case: Case,
        loaders: Sequence[Modelled],
        free_step_s: float | None = None,
        *,
        felt: float | None = None,
    ) -> None:
        self._case, self._loaders, self._felt = case, loaders, felt
        batches = sum(one.batches for one in loaders)
        self._take_turns = batches <= _BY_TURNS * case.summary.training.iterations
        self._faster = None if free_step_s is None else self._compute_left(free_step_s)

    @property
    def are_side_by_side(self) -> bool:
        """Whether there are several, and they are asked one after the other in every step."""
        return len(self._loaders) > 1 and not self._take_turns

    def played(self, index: int, settings: Sequence[Setting]) -> Prediction:
        """Returns the model of one loader among the others."""
        return predict(self.inputs(index, settings), settings[index])

    def inputs(self, index: int, settings: Sequence[Setting]) -> PipelineInputs:
        """Returns the series of one loader among the others."""
        return self._inputs(index, settings, self._faster or 1.0, others=0.0)

    def batch_s(self, index: int, settings: Sequence[Setting]) -> float:
        """Returns what a batch of one loader takes most likely, with its part of a pass's start."""
        found = self.played(index, settings)
        return found.step_s.mid + self._starts(index, found).mid

    def speedup(self, settings: Sequence[Setting]) -> Interval | None:
        """Returns how many times as fast training will be; None where it cannot be told."""
        found = self.of_steps(settings)
        if found is None:
            return None
        if self._faster is None:
            waits = sum(x.fed.wait_share for x in self._loaders)
            found = of_faster_steps(self._case, found, waits)
        return self._of_all_steps(self._with_starts(found, settings))

    def of_steps(self, settings: Sequence[Setting]) -> Interval | None:
        """Returns how many times as fast steps will be by the model alone; None as above."""
        kept = self._kept(settings, [0.0] * len(settings))
        if not 0 < kept.low <= kept.high < np.inf:
            return None
        if self.are_side_by_side:
            kept = self._kept(settings, self._loads(settings, kept.mid))
        return Interval(1 / kept.high, 1 / kept.mid, 1 / kept.low)

    def _of_all_steps(self, speedup: Interval) -> Interval:
        """Returns how many times as fast all is if these loaders feed a part of the steps."""
        shares = [one.fed.steps_share for one in self._loaders]
        share = min(sum(shares), 1.0) if self._take_turns else max(shares)
        if share >= NEARLY_ALL:
            return speedup
        return Interval(*(times_of_part(speedup.at(end), share) for end in ("low", "mid", "high")))

    def _with_starts(self, steps: Interval, settings: Sequence[Setting]) -> Interval:
        """Returns how many times as fast training will be whose steps are so many times as fast."""
        count = range(len(settings))
        before = self._of_all([self._starts_now(k) for k in count]).mid
        after = self._of_all([self._starts(k, self.played(k, settings)) for k in count])
        return Interval(
            (1 + before) / (1 / steps.low + after.high),
            (1 + before) / (1 / steps.mid + after.mid),
            (1 + before) / (1 / steps.high + after.low),
        )

    def _of_all(self, starts: Sequence[Interval]) -> Interval:
        """Returns what starts of all loaders' passes add, as a share of steps as recorded.

        Loaders side by side start at the same time, or at worst one after the other.

        Args:
            starts: What they add to each batch of a loader, s.
        """
        pairs = list(zip(self._loaders, starts, strict=True))
        if self._take_turns:
            all_s = sum(one.batches * one.measured.step_s for one in self._loaders)
            low, mid, high = (
                sum(one.batches * start_s.at(end) for one, start_s in pairs) / all_s
                for end in ("low", "mid", "high")
            )
            return Interval(low, mid, high)
        return Interval(
            max(start_s.low / one.measured.step_s for one, start_s in pairs),
            max(start_s.mid / one.measured.step_s for one, start_s in pairs),
            sum(start_s.high / one.measured.step_s for one, start_s in pairs),
        )

    def _starts_now(self, index: int) -> Interval:
        now = self._loaders[index].fed.now
        return Interval(0.0, 0.0, 0.0) if now is None else self._starts(index, now)

    def _starts(self, index: int, found: Prediction) -> Interval:
        """Returns what starts of passes add to each batch of a loader, s.

        Batches that workers had made ahead take less than others: that is taken off.
        """
        one = self._loaders[index]
        played, batches = one.inputs.batches, one.fed.loader.length or one.inputs.batches
        low, mid, high = (
            (found.epoch_s.at(end) - played * found.step_s.at(end)) / max(batches, played)
            for end in ("low", "mid", "high")
        )
        return Interval(min(low, mid, high), mid, max(low, mid, high))

    def _compute_left(self, free_step_s: float) -> float | None:
        """Returns what is left of the time that steps compute when they wait for nothing."""
        training, first = self._case.summary.training, self._loaders[0]
        if len(self._loaders) == 1:
            batches, own_s = training.iterations, first.inputs.compute_s.mean()
        elif self._take_turns:
            batches = sum(one.batches for one in self._loaders)
            all_s = sum(one.batches * one.inputs.compute_s.mean() for one in self._loaders)
            own_s = all_s / batches
        else:
            batches, own_s = first.batches, self._own_compute_s(0)
        free_s = free_step_s * training.steps
        if not free_s > 0 or not batches * own_s > 0:
            return None
        return min(free_s / float(batches * own_s), 1.0)

    def _waits_for_others_s(self, index: int, settings: Sequence[Setting] | None = None) -> float:
        """Returns the waits for the other loaders for each batch of one, as recorded.

        Args:
            index: Of the one.
            settings: Only those for loaders that have no workers in these.
        """
        if self._take_turns:
            return 0.0
        return sum(
            other.measured.wait_s * other.batches / self._loaders[index].batches
            for k, other in enumerate(self._loaders)
            if k != index and (settings is None or settings[k].workers == 0)
        )

    def _own_compute_s(self, index: int) -> float:
        """Returns what is computed for each batch of a loader, without waits for the others."""
        mean_s = float(self._loaders[index].inputs.compute_s.mean())
        return max(mean_s - self._waits_for_others_s(index), _LEAST_COMPUTE * mean_s)

    def _inputs(
        self, index: int, settings: Sequence[Setting], faster: float, others: float
    ) -> PipelineInputs:
        """Returns a loader's inputs among the others.

        The batches of those without workers are made meanwhile in the main process; those of the
        others come beside.
        """
        inputs = self._loaders[index].inputs
        mean_s = float(inputs.compute_s.mean())
        stays_s = self._waits_for_others_s(index, settings)
        own_s = self._own_compute_s(index) * faster + stays_s
        busy = inputs.others
        compute_s = inputs.compute_s * (own_s / mean_s if mean_s > 0 else 1.0)
        if self._felt is not None:
            measured = self._loaders[index].measured
            waits_s = measured.wait_s + self._waits_for_others_s(index)
            compute_s = np.maximum(compute_s, measured.step_s - self._felt * waits_s)
        return replace(
            inputs,
            compute_s=compute_s,
            others=Interval(busy.low, busy.mid + others / 2, busy.high + others),
        )

    def _loads(self, settings: Sequence[Setting], kept: float) -> list[float]:
        """Returns for each loader how many more cores at most workers of the others keep busy."""
        added = []
        for one, setting in zip(self._loaders, settings, strict=True):
            running_s = float(running_of(one.inputs, "mid").mean())
            before, after = (
                min(float(workers), running_s / step_s)
                for workers, step_s in (
                    (one.inputs.setting.workers, one.measured.step_s),
                    (setting.workers, kept * one.measured.step_s),
                )
            )
            added.append(max(after - before, 0.0))
        return [sum(added) - own for own in added]

    def _kept(self, settings: Sequence[Setting], others: Sequence[float]) -> Interval:
        """Returns which share of its time training will take.

        Args:
            settings: Of the loaders.
            others: For each loader, cores that workers of the others keep busy besides.
        """
        steps = [self._steps(k, settings, others[k]) for k in range(len(settings))]
        if self._take_turns:
            now_s = sum(one.batches * one.measured.step_s for one in self._loaders)
            pairs = list(zip(self._loaders, steps, strict=True))
            low, mid, high = (
                sum(one.batches * step_s.at(end) for one, (step_s, _) in pairs) / now_s
                for end in ("low", "mid", "high")
            )
            return Interval(low, mid, high)
        shares = [
            Interval(*(step_s.at(end) / one.measured.step_s for end in ("low", "mid", "high")))
            for one, (step_s, _) in zip(self._loaders, steps, strict=True)
        ]
        slowest = max(range(len(shares)), key=lambda k: shares[k].high)
        # At worst, the waits for all of them come one after the other.
        waits = sum(
            wait_s / one.measured.step_s
            for k, (one, (_, wait_s)) in enumerate(zip(self._loaders, steps, strict=True))
            if k != slowest and settings[k].workers
        )
        least = self._work_s() / self._loaders[0].measured.step_s
        return Interval(
            max(least, *(share.low for share in shares)),
            max(least, *(share.mid for share in shares)),
            max(least, shares[slowest].high + waits),
        )

    def _work_s(self) -> float:
        """Returns what all of a step takes at least on the cores that there are, s.

        A step is that of a batch of the first loader.
        """
        first = self._loaders[0]
        fetched_s = sum(
            float(running_of(one.inputs, "low").mean()) * one.batches / first.batches
            for one in self._loaders
        )
        computed_s = self._own_compute_s(0) * (self._faster or 1.0)
        return (fetched_s + computed_s * first.inputs.compute_cores.low) / first.inputs.cores

    def _steps(
        self, index: int, settings: Sequence[Setting], others: float
    ) -> tuple[Interval, float]:
        """Returns what a step takes with a batch of this loader, and the wait for it at most, s.

        Where waits remain, computing is as much slower as they are of those that there were.
        """
        one = self._loaders[index]
        slow = predict(self._inputs(index, settings, 1.0, others), settings[index])
        if self._faster is None:
            return slow.step_s, slow.wait_s.high
        fast = predict(self._inputs(index, settings, self._faster, others), settings[index])
        before_s = one.measured.wait_s + self._waits_for_others_s(index)
        remains_s = fast.wait_s.mid + self._waits_for_others_s(index, settings)
        waits = min(max(remains_s / before_s, 0.0), 1.0) if before_s > 0 else 0.0
        low, mid, high = (
            fast.step_s.at(end) + (slow.step_s.at(end) - fast.step_s.at(end)) * waits
            for end in ("low", "mid", "high")
        )
        return Interval(low, mid, high), max(fast.wait_s.high, slow.wait_s.high * waits)
