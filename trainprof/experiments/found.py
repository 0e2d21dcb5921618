"""What a search has measured so far, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trainprof.analysis.speedup import UNKNOWN, Pace, SpeedUp, speed_up
from trainprof.analysis.tuning import BASELINE, CEILING, FAILED, OK, RUNNING
from trainprof.experiments.alike import Alike, alike
from trainprof.experiments.candidates import Plan
from trainprof.experiments.not_compared import cold_runs, held_up_runs, runs_on_other_batches
from trainprof.experiments.shared_streams import of_so_many_steps, steps_for_one
from trainprof.experiments.trial import WARM_UP, Measured, Trial


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the search is.

    Attributes:
        trial: About to run, None: `measured` has.
        done, expected: Runs of trials; how many there will be is not known before the baseline.
        left_s: Of the budget.
        is_kept: The run was made before, and is not made again.
    """

    trial: Trial
    measured: Measured | None
    done: int
    expected: int | None
    left_s: float
    is_kept: bool = False


@dataclass(slots=True)
class Found:
    """What a search has measured so far.

    Attributes:
        runs: In order of time, the warm-up first.
        plan: None until there is a baseline.
        predicted: By the name of a trial, as said before it ran.
        learned_from: By the name of a trial the one that its forecast counts, where it does.
        trial_steps: After which trials are stopped, None: never.
        cautions: What each trial alters, or needs, by its name.
        best: What is recommended, None: the script as it is.
        ended_by: FINISHED, BUDGET, INTERRUPTED or RUNNING.
        unfinished: Names of what was still to be tried.
        first_counts: The first run counts as the baseline.
        undecided: Names of what had all its repeats, and does not tell enough even so.
        needed_budget_s: That lets one change be tried; None where one was, or none was to be.
    """

    runs: list[Measured] = field(default_factory=list)
    plan: Plan | None = None
    predicted: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    cautions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    learned_from: dict[str, str] = field(default_factory=dict)
    trial_steps: int | None = None
    best: Trial | None = None
    ended_by: str = RUNNING
    unfinished: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    first_counts: bool = False
    needed_budget_s: float | None = None
    _compared: dict[object, tuple[SpeedUp, object]] = field(default_factory=dict)
    _alike: dict[object, tuple[Alike, object]] = field(default_factory=dict)
    _weighed: dict[object, tuple[Pace, object]] = field(default_factory=dict)

    def of(self, name: str) -> list[Measured]:
        """Returns the runs of a trial."""
        return [one for one in self.runs if one.trial.name == name]

    def failures_after(self) -> list[str]:
        """Returns how runs of the script as it is failed once their training had been ended."""
        runs = [one for one in self.runs if one.trial.name in (WARM_UP, BASELINE)]
        return [one.failed_after for one in runs if one.failed_after is not None]

    def judged(self, run: Measured) -> Measured:
        """Returns a run that failed after its training as failed, where its change may be why.

        Where the script as it is fails likewise it misses what the whole training writes, and a run
        that was cut did not come as far.
        """
        if run.outcome != OK or run.failed_after is None or run.was_cut or not run.trial.overrides:
            return run
        known = {_kind(told) for told in self.failures_after()}
        if _kind(run.failed_after) in known:
            return run
        return replace(run, outcome=FAILED, detail=run.failed_after, pace=None, training_pace=None)

    def comparable(self, name: str) -> list[Measured]:
        """Returns the runs of a trial that tell how fast it is."""
        left_out = {
            *cold_runs(self.runs),
            *held_up_runs(self.runs),
            *runs_on_other_batches(self.runs),
        }
        return [one for one in self.of(name) if one.is_ok and one.directory not in left_out]

    def was_cold(self, run: Measured) -> bool:
        """Whether a run read from disk what others had in memory."""
        return run.directory in cold_runs(self.runs)

    def speedup(self, trial: Trial) -> SpeedUp | None:
        """Returns how many times as fast a trial's runs trained as the baseline's.

        By steps, or by passes over a stream that has more of them, smaller ones, in the trial.
        Of a loader alone: how many times as many batches it gave as the baseline's steady steps
        took.
        """
        return self._of(trial, lambda run: run.pace if trial.data == "alone" else run.training_pace)

    def steps_speedup(self, trial: Trial) -> SpeedUp | None:
        """The same of steady steps alone, without what starts of passes take."""
        return self._of(trial, lambda run: run.pace)

    def _of(self, trial: Trial, pace_of: Callable[[Measured], Pace | None]) -> SpeedUp | None:
        both = self.alike(trial.name)
        if both.is_too_short:
            return SpeedUp(None, None, None, UNKNOWN, None, "too few steps are alike")
        base, other = (
            [pace for one in runs if (pace := pace_of(one)) is not None]
            for runs in (both.base, both.other)
        )
        times = self.steps_for_one(trial)
        if times != 1:
            other = [self._so_many_steps(pace, times) for pace in other]
        return self.compared(base, other) if base and other else None

    def steps_for_one(self, trial: Trial) -> float:
        """Returns how many of a trial's steps are as much work as one of the script as it is."""
        return steps_for_one(self.comparable(BASELINE), self.comparable(trial.name), trial)

    def _so_many_steps(self, pace: Pace, times: float) -> Pace:
        """Returns one object for one question: what is compared is known by it."""
        known = self._weighed.get((id(pace), times))
        if known is None:
            known = self._weighed[id(pace), times] = (of_so_many_steps(pace, times), pace)
        return known[0]

    def alike(self, name: str) -> Alike:
        """Returns the baseline's runs and a trial's as they are compared; each question once."""
        base, other = self.comparable(BASELINE), self.comparable(name)
        key = (tuple(map(id, base)), tuple(map(id, other)))
        known = self._alike.get(key)
        if known is None:
            # With the runs, so that no other object gets its id.
            known = self._alike[key] = (alike(base, other), (base, other))
        return known[0]

    def free_step_s(self) -> float | None:
        """Returns what a step takes on free data, None where that is not known, or only a bound."""
        paces = [one.pace for one in self.alike(CEILING).other if not one.is_least]
        return next((pace.mean_s for pace in paces if pace is not None), None)

    def tells_ceiling(self) -> bool:
        """Whether free data shows what loading costs, and not only the least that it may cost."""
        runs = self.comparable(CEILING)
        return bool(runs) and not any(one.is_least for one in runs)

    def compared(self, base: Sequence[Pace], other: Sequence[Pace]) -> SpeedUp:
        """Returns how many times as fast some runs were as others; each question once."""
        key = (tuple(map(id, base)), tuple(map(id, other)))
        known = self._compared.get(key)
        if known is None:
            # With what was compared, so that no other object gets its id.
            known = self._compared[key] = (
                speed_up(base, other, took_turns=True),
                (tuple(base), tuple(other)),
            )
        return known[0]

    def spent_s(self) -> float:
        return sum(one.seconds for one in self.runs)


def _kind(told: str) -> str:
    """Returns the exception's class, or the exit status: messages name files of a trial's own."""
    return told.partition(":")[0]
