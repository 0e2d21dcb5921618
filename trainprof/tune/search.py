"""Searches for faster settings: measures single changes, then combines the faster ones.

Single changes alternate with baselines. Combinations add the faster changes one by one, the best
first. Open results are repeated, alternating with the baseline, until decided or out of budget.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.tune import (
    BASELINE,
    BROKEN,
    BUDGET,
    CEILING,
    CUT_SHORT,
    FINISHED,
    HUNG,
    INTERRUPTED,
    LOADER_ALONE,
    TOO_FEW_STEPS,
)
from trainprof.record.errors import TrainprofError
from trainprof.tune.candidate import Candidate, learned, together
from trainprof.tune.candidates import Plan
from trainprof.tune.choice import (
    best,
    contenders,
    is_decided,
    speed_of,
    untried_together,
    variants,
    winners,
)
from trainprof.tune.loader_candidates import PERSISTENT, PREFETCHING, WORKERS
from trainprof.tune.measurements import Measurements, Progress, cold_runs
from trainprof.tune.trial import (
    WARM_UP,
    Limits,
    Measured,
    Trial,
    TrialRunner,
    baseline,
    ceiling,
    loader_alone,
    was_cut_early,
)
from trainprof.tune.trial_limits import (
    ENDING_S,
    as_option,
    budget_of_a_change,
    duration,
    limits_of,
    limits_of_first_baseline,
    limits_of_warm_up,
    longest_trial_s,
    plan_sentence,
    steps_beyond_epoch,
    steps_of_trials,
    trial_s,
)

# Changes between two baselines.
_SINGLES_PER_BASELINE: Final = 3
# The bounds of loading (ceiling, loader alone) need time for this number of trials: the bound
# itself, a change and the last baseline.
_TRIALS_BEHIND_BOUND: Final = (3.0, 4.0)
# Least time of the first change, as a share of a usual trial: 22 of 30 steps still count.
_LEAST_OF_CHANGE: Final = 0.75
# Least time of the last baseline, as a share of a usual trial.
_LEAST_OF_BASELINE: Final = 0.5
# A run without a step in this multiple of a usual trial hangs.
_HANGS_AFTER: Final = 2.0
# Runs of an undecided trial, and trials repeated together.
_MOST_RUNS: Final = 4
_REPEATED_AT_MOST: Final = 3
# Changes that cannot help if replayed batches do not.
_OF_LOADING: Final = frozenset({WORKERS, PREFETCHING})
_LOADING_HIDDEN: Final = (
    "loader settings were not tried: batches replayed from memory are no faster"
)
# If the interval of replayed batches exceeds this, noise may hide what loading costs.
_MAY_BE_CHANCE: Final = 0.1


class CannotTune(TrainprofError):
    slug: ClassVar[str] = "cannot-tune"
    exit_code: ClassVar[int] = 2


def too_short(budget_s: float, takes: str, needed_s: float | None) -> CannotTune:
    """Returns the error of a budget in which no change can be measured."""
    needed = "a longer --budget" if needed_s is None else f"about {as_option(needed_s)}"
    return CannotTune(
        f"the budget of {duration(budget_s)} is too small: {takes}",
        hint=f"a baseline and one setting need {needed}",
    )


class _Ended(Exception):
    """Ends the search; `why`: BUDGET or INTERRUPTED."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass
class Search:
    """Runs trials until the best setting is decided, or the budget is spent.

    Attributes:
        plan_of: Returns the plan from a baseline and the step time with replayed batches, if known.
        budget_s: Wall-clock time from now on. Trials that don't fit are not started.
        trial_steps: Length of trials; None fits it to `steps_budget_s`, by default the budget. A
            resumed search keeps its first `steps_budget_s`.
        directory: Of the `tune` run, as typed.
        is_known: Whether an earlier start made a run: it costs no budget.
        on_progress: Called before and after each run.
        keep: Called with all measurements after each run.
        announce: Called with a sentence on what fits into the budget.
    """

    runner: TrialRunner
    plan_of: Callable[[Measured, float | None], Plan]
    budget_s: float
    trial_steps: int | None = None
    steps_budget_s: float | None = None
    directory: Path = Path()
    is_known: Callable[[Trial, int], bool] = lambda trial, number: False
    on_progress: Callable[[Progress], None] = lambda progress: None
    announce: Callable[[str], None] = lambda sentence: None
    keep: Callable[[Measurements], None] = lambda measurements: None
    now: Callable[[], float] = time.monotonic
    known: Measurements = field(default_factory=Measurements)

    def __post_init__(self) -> None:
        self._steps_budget_s = self.steps_budget_s or self.budget_s
        self._ends_s = self.now() + self.budget_s
        self._has_run = False
        self._usual_s = 0.0  # duration of a baseline
        self._since_baseline = 0
        self._made: Counter[str] = Counter()  # runs by name
        self._waiting: list[str] = []
        self._left_out: list[str] = []

    def run(self) -> Measurements:
        """Returns the measurements; CannotTune if the baseline cannot be measured."""
        known = self.known
        try:
            base = self._planned_from(self._begin())
            assert known.plan is not None
            self._announce_rest(known.plan)
            self._bounds(known.plan)
            plan = known.plan = self.plan_of(base, known.free_step_s())
            self._singles(plan)
            plan = known.plan = self._with_persistent_workers(known.plan)
            self._put_together(plan)
            self._decide()
            if untried_together(known):
                # Repeated runs made more changes visibly faster.
                self._put_together(plan)
                self._decide()
            known.ended_by = FINISHED
            self._last_baseline()
            while known.ended_by == FINISHED and self._goes_on():
                self._decide()
                self._last_baseline()
        except _Ended as end:
            known.ended_by = end.why
        except KeyboardInterrupt:
            # Between trials. During a trial the script receives it, and its outcome is INTERRUPTED.
            known.ended_by = INTERRUPTED
        if known.ended_by == FINISHED and any(run.outcome == CUT_SHORT for run in known.runs):
            known.ended_by = BUDGET
        waiting = self._waiting if known.ended_by != FINISHED else []
        if known.ended_by != INTERRUPTED and len(known.runs) > 2:
            self._last_baseline()
        waiting = list(dict.fromkeys((*waiting, *untried_together(known), *self._left_out)))
        known.unfinished = [name for name in waiting if not known.of(name)]
        if known.ended_by == BUDGET and not any(run.trial.overrides for run in known.runs):
            known.needed_budget_s = budget_of_a_change(known.runs[0].seconds, self._usual_s)
        self.keep(known)
        return known

    def _begin(self) -> Measured:
        """Returns the first baseline: the second run, or the first if only one fits."""
        first = limits_of_warm_up(self.budget_s, self._steps_budget_s, self.trial_steps)
        warm_up = self._measure(Trial(WARM_UP), first)
        if warm_up.outcome in BROKEN:
            raise self._cannot(warm_up)
        is_known = self.is_known(baseline(), 1)
        steps = self.trial_steps or self._steps_of_trials(warm_up)
        self.known.trial_steps = steps
        takes_s = trial_s(warm_up, steps)
        needed_s = 0.0 if takes_s is None else 2 * takes_s
        if self._time_left_s() < max(needed_s, ENDING_S) and not is_known:
            return self._first_as_baseline(warm_up, takes_s)
        base = self._measure(baseline(), limits_of_first_baseline(self._time_left_s(), steps))
        if base.outcome == TOO_FEW_STEPS and base.run_s is None and takes_s is not None:
            raise self._too_short(base, warm_up.seconds, max(takes_s, base.seconds))
        if not base.is_ok:
            raise self._cannot(base)
        return base

    def _first_as_baseline(self, warm_up: Measured, takes_s: float | None) -> Measured:
        """Counts the warm-up as the baseline: a second run would leave no time for a change."""
        if not warm_up.is_ok:
            raise self._too_short(warm_up, warm_up.seconds, takes_s)
        base = self.known.runs[-1] = replace(warm_up, trial=baseline())
        self._usual_s, self._since_baseline = base.seconds, 0
        self.known.first_counts = True
        return base

    def _too_short(self, run: Measured, first_s: float, takes_s: float | None) -> CannotTune:
        takes = f"{run.steps} steps took {duration(run.seconds)}"
        needed_s = None if takes_s is None else budget_of_a_change(first_s, takes_s)
        return too_short(self.budget_s, takes, needed_s)

    def _steps_of_trials(self, warm_up: Measured) -> int | None:
        """Returns the length of trials: beyond an epoch if epoch starts matter."""
        steps = steps_of_trials(warm_up, self._steps_budget_s)
        if steps is None or not warm_up.is_ok:
            return steps
        epoch_steps = self.plan_of(warm_up, None).steps_of_epoch
        if epoch_steps is None:
            return steps
        return steps_beyond_epoch(steps, epoch_steps, warm_up, self._steps_budget_s)

    def _planned_from(self, base: Measured) -> Measured:
        """Plans, and returns the baseline of the plan: one that the loader model explains."""
        self.known.plan = plan = self.plan_of(base, None)
        if not plan.sites or plan.ceiling is not None:
            return base
        again = self._measure(baseline())
        other = self.plan_of(again, None) if again.is_ok else plan
        if other.ceiling is None:
            return base
        self.known.plan = other
        return again

    def _cannot(self, run: Measured) -> CannotTune:
        why = f": {run.detail}" if run.detail else ""
        console = self.directory / run.directory / "console"
        if run.outcome == HUNG:
            return CannotTune(
                f"the script hangs or starts slowly{why}",
                hint=f"see its output in {console}. If it starts slowly, use a longer --budget",
            )
        return CannotTune(
            f"the baseline failed: {run.outcome}{why}", hint=f"see its output in {console}"
        )

    def _announce_rest(self, plan: Plan) -> None:
        names = [
            candidate.name
            for candidate in plan.candidates
            if not self.is_known(candidate.trial(), 1)
        ]
        if names:
            left = f"{duration(max(self._time_left_s(), 0.0))} left"
            self.announce(plan_sentence(names, bool(plan.sites), self._usual_s, left))

    def _bounds(self, plan: Plan) -> None:
        """Measures the bounds of loading, if that leaves time for a change."""
        if not plan.sites:
            return
        forecast = plan.ceiling if plan.has_ceiling_forecast else None
        self.known.predicted |= {CEILING: forecast, LOADER_ALONE: plan.alone}
        self._waiting = [candidate.name for candidate in plan.candidates]
        trials = (_ceiling(plan), loader_alone(plan.sites))
        for trial, behind in zip(trials, _TRIALS_BEHIND_BOUND, strict=True):
            is_short = self._time_left_s() < behind * self._usual_s
            if plan.candidates and is_short and not self.is_known(trial, 1):
                self._left_out.append(trial.name)
            else:
                self._measure_warm(trial)

    def _singles(self, plan: Plan) -> None:
        left = list(plan.candidates)
        while left:
            self._waiting = [candidate.name for candidate in left]
            candidate = left.pop(0)
            if candidate.subject in _OF_LOADING and self._is_loading_hidden(plan):
                if _LOADING_HIDDEN not in plan.notes:
                    self.known.plan = replace(plan, notes=(*plan.notes, _LOADING_HIDDEN))
                continue
            self._try(candidate)
        self._waiting = []

    def _with_persistent_workers(self, plan: Plan) -> Plan:
        """Tries persistent workers if the fastest setting restarts its workers each epoch."""
        winner = next(
            (candidate for candidate in winners(self.known, plan) if candidate.subject == WORKERS),
            None,
        )
        runs = [] if winner is None else self.known.comparable(winner.name)
        if winner is None or not runs or runs[0].starts_share() < LEAST_GAIN:
            return plan
        seen = self.plan_of(runs[0], self.known.free_step_s()).candidates
        kept = next((candidate for candidate in seen if PERSISTENT in candidate.overrides), None)
        if kept is None or PERSISTENT in winner.overrides:
            return plan
        both = together([winner, kept])
        least, most = kept.predicted or (1.0, 1.0)
        forecast = None
        if winner.predicted is not None:
            most = max(most, 1 + runs[0].starts_share())
            forecast = (winner.predicted[0] * least, winner.predicted[1] * most)
        follower = replace(both, subject=WORKERS, predicted=forecast)
        self.known.plan = replace(plan, candidates=(*plan.candidates, follower))
        self._waiting = [follower.name]
        self._try(follower)
        self._waiting = []
        return self.known.plan

    def _put_together(self, plan: Plan) -> None:
        """Adds the faster changes one by one, the best first, each in several variants.

        A change without effect alone may matter in combination: faster steps need more workers.
        """
        fastest = winners(self.known, plan)
        if len(fastest) < 2:
            return
        taken = [fastest[0]]
        for candidate in fastest[1:]:
            tried = variants(self.known, taken, plan)
            self._waiting = [together([*variant, candidate]).name for variant in tried]
            for variant in tried:
                both = together([*variant, candidate])
                if not self.known.of(both.name):
                    self._try(both)
            before = speed_of(self.known, together(taken)) or 1.0
            speeds = [speed_of(self.known, together([*each, candidate])) or 0.0 for each in tried]
            if max(speeds) > before * (1 + LEAST_GAIN):
                near = [k for k, x in enumerate(speeds) if x * (1 + LEAST_GAIN) >= max(speeds)]
                taken = [*tried[near[0]], candidate]
        self._waiting = []

    def _decide(self) -> None:
        """Repeats the possibly best trials, alternating with the baseline, until decided."""
        while open_ones := self._to_repeat():
            self._waiting = [trial.name for trial in open_ones]
            self._measure(baseline())
            for trial in open_ones:
                self._measure(trial)

    def _goes_on(self) -> bool:
        """Whether something is to be repeated after the last baseline."""
        # An earlier start ended here: undecided trials get another _MOST_RUNS.
        if not self._to_repeat() and not self._has_run:
            self._made.clear()
        return bool(self._to_repeat())

    def _to_repeat(self) -> list[Trial]:
        contended = contenders(self.known, _REPEATED_AT_MOST)
        undecided = [trial for trial in contended if not is_decided(self.known, trial)]
        return [trial for trial in undecided if self._made[trial.name] < _MOST_RUNS]

    def _try(self, candidate: Candidate) -> None:
        if self._since_baseline >= _SINGLES_PER_BASELINE:
            self._measure(baseline())
        tried = self.known.plan.candidates if self.known.plan is not None else ()
        self.known.predicted[candidate.name] = learned(
            candidate, tried, lambda other: self.known.speedup(other.trial())
        )
        self.known.cautions[candidate.name] = candidate.cautions
        self._measure_warm(candidate.trial())

    def _measure_warm(self, trial: Trial) -> None:
        measured = self._measure(trial)
        if measured.is_ok and measured.directory in cold_runs(self.known.runs):
            # It read from disk what is in the page cache by now.
            self._measure(trial)

    def _is_loading_hidden(self, plan: Plan) -> bool:
        """Whether replayed batches are no faster: then no loader setting can be."""
        speed = self.known.speedup(_ceiling(plan)) if self.known.measures_ceiling() else None
        if speed is None or speed.mid is None or speed.high is None:
            return False
        return speed.mid < 1 + LEAST_GAIN / 2 and speed.high < 1 + _MAY_BE_CHANCE

    def _last_baseline(self) -> None:
        """Ends with a baseline, as the search began: this shows drift of the machine."""
        if self.known.runs[-1].trial.name != BASELINE:
            try:
                self._measure(baseline(), is_last=True)
            except _Ended as end:
                if end.why == INTERRUPTED:
                    self.known.ended_by = INTERRUPTED

    def _time_left_s(self) -> float:
        return self._ends_s - self.now()

    def _measure(
        self, trial: Trial, limits: Limits | None = None, *, is_last: bool = False
    ) -> Measured:
        left_s = self._time_left_s()
        number = len(self.known.of(trial.name)) + 1
        is_known = self.is_known(trial, number)
        if limits is None:
            # Reserves the time of the last baseline, unless the first change needs it.
            aside_s = 0.0 if is_last else self._usual_s
            least = _LEAST_OF_BASELINE if is_last else 1.0
            if trial.overrides and not any(run.trial.overrides for run in self.known.runs):
                aside_s = min(aside_s, max(left_s - self._usual_s, 0.0))
                least = _LEAST_OF_CHANGE
            needed_s = self._usual_s * least + aside_s
            if left_s < needed_s and not is_known:
                raise _Ended(BUDGET)
            longest_s = longest_trial_s(self.budget_s)
            if left_s - longest_s < self._usual_s:
                longest_s = left_s  # nothing else would fit afterwards
            limits = self._limits(trial, min(left_s - aside_s, longest_s))
        limits = replace(limits, killed_after_s=min(limits.killed_after_s, left_s + ENDING_S))
        self._say(trial, None, is_kept=is_known)
        began_s = self.now()
        measured = self.known.judged(self.runner.run(trial, number, limits))
        if is_known:
            self._ends_s += self.now() - began_s
        elif was_cut_early(measured, limits) and (
            # A hang needs the time in which the baseline makes its steps.
            measured.outcome != HUNG or measured.seconds < _HANGS_AFTER * self._usual_s
        ):
            detail = f"the budget ran out after {measured.steps} steps"
            measured = replace(measured, outcome=CUT_SHORT, detail=detail)
        if trial.data == "alone" and self.known.plan is not None:
            measured = measured.by_updates(self.known.plan.steps_per_batch)
        self.known.runs.append(measured)
        self._has_run |= not is_known
        self._made[trial.name] += 1
        self._since_baseline = 0 if trial.name == BASELINE else self._since_baseline + 1
        if trial.name == BASELINE and measured.is_ok:
            took_s = [run.seconds for run in self.known.of(BASELINE) if run.is_ok]
            self._usual_s = statistics.median(took_s)
        self._say(trial, measured, is_kept=is_known)
        self.known.best = best(self.known)
        self.keep(self.known)
        if measured.outcome == INTERRUPTED:
            raise _Ended(INTERRUPTED)
        return measured

    def _limits(self, trial: Trial, left_s: float) -> Limits:
        plan = self.known.plan
        steps = max((run.steps for run in self.known.runs if run.trial.data == "real"), default=0)
        expected = self.known.predicted.get(trial.name)
        if trial.name == CEILING and plan is not None:
            expected = plan.ceiling
        elif self.trial_steps is not None:
            expected = None
        return limits_of(
            trial,
            self.known.trial_steps,
            usual_s=self._usual_s,
            left_s=left_s,
            steps_per_batch=plan.steps_per_batch if plan is not None else 1.0,
            times=1.0 if expected is None else math.sqrt(expected[0] * expected[1]),
            # The number that training has read.
            alone=0
            if plan is None
            else max(math.ceil(steps / plan.steps_per_batch), plan.fewest_alone),
        )

    def _say(self, trial: Trial, measured: Measured | None, *, is_kept: bool) -> None:
        left_s = max(self._time_left_s(), 0.0)
        self.on_progress(Progress(trial, measured, len(self.known.runs), left_s, is_kept))


def _ceiling(plan: Plan) -> Trial:
    return ceiling(plan.free_sites or plan.sites, plan.epoch_batches)
