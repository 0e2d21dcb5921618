"""Holds the measurements of a search, and selects the runs and steps to compare.

Two trials are compared over the same steps: faster trials make more of them, and step times may
change during training.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainprof.analysis.statistics.speedup import UNKNOWN, SpeedUp, speed_up
from trainprof.analysis.summary.tune import BASELINE, CEILING, FAILED, OK, RUNNING
from trainprof.tune.trial import WARM_UP, Measured, Trial

if TYPE_CHECKING:
    from trainprof.tune.candidates import Plan

# A run below this read its data from the page cache.
_COLD_BYTES_PER_STEP: Final = 1 << 20
_COLD_TIMES: Final = 2.0
# Runs of the same trial differ by less through noise.
_HELD_UP_TIMES: Final = 2.0
# Mean sizes of some dozens of batches with varied samples differ by less.
_OTHER_SIZE: Final = 0.2
# Equal steps differ by less through clocks, caches and cores that have just slept.
_OTHER_KIND: Final = 0.1
_IN_TURNS: Final = partial(speed_up, took_turns=True)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Alike:
    """Runs of the baseline and of a trial, with the paces to compare.

    `until`: number of steps of each run that count, None for all.
    """

    base: Sequence[Measured]
    other: Sequence[Measured]
    until: int | None = None

    @property
    def is_too_short(self) -> bool:
        """Whether too few steps of a side count."""
        sides = (self.base, self.other)
        return self.until is not None and any(all(x.pace is None for x in y) for y in sides)


@dataclass(frozen=True, slots=True)
class Progress:
    """State of the search before a run (`measured` is unset) and after it.

    `done` counts runs. `left_s` is of the budget. `is_kept`: the run is from an earlier start.
    """

    trial: Trial
    measured: Measured | None
    done: int
    left_s: float
    is_kept: bool = False


@dataclass(slots=True)
class Measurements:
    """The measurements of a search.

    Attributes:
        runs: In order of time, the warm-up first.
        predicted, cautions: By the name of a trial.
        trial_steps: Steps after which trials end, None for the script's end.
        unfinished: Names of trials that did not fit.
        first_counts: The first run is the baseline.
        needed_budget_s: Budget for one change, if none could be tried.
    """

    runs: list[Measured] = field(default_factory=list)
    plan: Plan | None = None
    predicted: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    cautions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trial_steps: int | None = None
    best: Trial | None = None
    ended_by: str = RUNNING
    unfinished: list[str] = field(default_factory=list)
    first_counts: bool = False
    needed_budget_s: float | None = None
    _cache: dict[object, tuple[Any, object, object]] = field(default_factory=dict)

    def of(self, name: str) -> list[Measured]:
        return [run for run in self.runs if run.trial.name == name]

    def failures_after(self) -> list[str]:
        """Returns how baselines failed after a limit had ended their training."""
        runs = [run for run in self.runs if run.trial.name in (WARM_UP, BASELINE)]
        return [run.failed_after for run in runs if run.failed_after is not None]

    def judged(self, run: Measured) -> Measured:
        """Returns a run that failed after its training as failed, if its change may be the cause.

        A baseline with the same failure lacks what a full training writes. A run that was cut may
        not have got there.
        """
        if run.outcome != OK or run.failed_after is None or run.was_cut or not run.trial.overrides:
            return run
        known = {_kind(failure) for failure in self.failures_after()}
        if _kind(run.failed_after) in known:
            return run
        return replace(run, outcome=FAILED, detail=run.failed_after, pace=None, training_pace=None)

    def comparable(self, name: str) -> list[Measured]:
        """Returns the runs of a trial that can be compared."""
        runs = self.runs
        left_out = {*cold_runs(runs), *held_up_runs(runs), *runs_on_other_batches(runs)}
        return [run for run in self.of(name) if run.is_ok and run.directory not in left_out]

    def speedup(self, trial: Trial) -> SpeedUp | None:
        """Returns the speedup of a trial over the baseline.

        For loader_alone: its batches against the baseline's steady steps.
        """
        both = self.alike(trial.name)
        if both.is_too_short:
            return SpeedUp(None, None, None, UNKNOWN, None, "too few common steps")
        paces = (
            [run.pace if trial.data == "alone" else run.training_pace for run in runs]
            for runs in (both.base, both.other)
        )
        base, other = ([pace for pace in side if pace is not None] for side in paces)
        return self._once(_IN_TURNS, base, other) if base and other else None

    def alike(self, name: str) -> Alike:
        """Returns the runs of the baseline and of a trial as they are compared, cached."""
        return self._once(alike, self.comparable(BASELINE), self.comparable(name))

    def free_step_s(self) -> float | None:
        """Returns the step time with replayed batches, None if unknown or only a bound."""
        paces = [run.pace for run in self.alike(CEILING).other if not run.is_least]
        return next((pace.mean_s for pace in paces if pace is not None), None)

    def measures_ceiling(self) -> bool:
        """Whether replayed batches measure the cost of loading, not only a lower bound."""
        runs = self.comparable(CEILING)
        return bool(runs) and not any(run.is_least for run in runs)

    def _once(
        self, make: Callable[[Sequence[T], Sequence[T]], R], base: Sequence[T], other: Sequence[T]
    ) -> R:
        """Returns `make(base, other)`, cached."""
        key = (make, tuple(map(id, base)), tuple(map(id, other)))
        if key not in self._cache:
            # Keeps both alive, so that their ids stay unique.
            self._cache[key] = make(base, other), base, other
        result: R = self._cache[key][0]
        return result

    def spent_s(self) -> float:
        return sum(run.seconds for run in self.runs)


def _kind(failure: str) -> str:
    """Returns the exception's class or the exit status; messages may name files of a trial."""
    return failure.partition(":")[0]


def alike(base: Sequence[Measured], other: Sequence[Measured]) -> Alike:
    """Returns runs as they are compared.

    All steps count, unless step times change after the last step that all runs made.
    """
    runs = (*base, *other)
    seen = [run.seen for run in runs if run.seen is not None]
    if len(seen) < len(runs) or not runs:
        return Alike(base, other)
    until = min(steps.until for steps in seen)
    least = max(_OTHER_KIND, *map(_may_wander, runs))
    if not any(steps.until > until and steps.drift_beyond(until) > least for steps in seen):
        return Alike(base, other)
    return Alike([run.up_to(until) for run in base], [run.up_to(until) for run in other], until)


def _may_wander(run: Measured) -> float:
    """Returns the share by which the machine's pace may have changed during a run."""
    wandering = 0.0 if run.pace is None else run.pace.wandering
    return max(wandering, run.disturbance)


def cold_runs(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of runs that read data from disk, others from the page cache."""
    per_step = {
        run.directory: run.read_bytes / max(run.steps, 1)
        for run in runs
        if run.is_ok and run.read_bytes is not None and run.trial.name != WARM_UP
    }
    if not per_step:
        return []
    usual = statistics.median(per_step.values())
    limit = max(_COLD_BYTES_PER_STEP, _COLD_TIMES * usual)
    return [directory for directory, size in per_step.items() if size > limit]


def held_up_runs(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of runs far slower than another run of the same trial.

    Other programs can only slow a run, so the fastest one counts.
    """
    paces: dict[str, dict[str, float]] = {}
    for run in runs:
        if run.is_ok and run.pace is not None and run.trial.name != WARM_UP:
            paces.setdefault(run.trial.name, {})[run.directory] = run.pace.mean_s
    return [
        directory
        for paces_s in paces.values()
        for directory, mean_s in paces_s.items()
        if mean_s > _HELD_UP_TIMES * min(paces_s.values())
    ]


def runs_on_other_batches(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of replay runs whose batches differ in size from the baseline's.

    Replay copies the first batches, which may be shorter than later ones.
    """
    sizes = (run.batches for run in runs if run.trial.name == BASELINE and run.is_ok)
    usual = next((batches for batches in sizes if batches), {})
    return [
        run.directory
        for run in runs
        if run.is_ok and run.trial.data == "free"
        if any(
            abs(usual[site] - run.batches[site]) > _OTHER_SIZE * max(usual[site], run.batches[site])
            for site in run.trial.sites
            if site in usual and site in run.batches
        )
    ]
