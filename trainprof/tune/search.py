"""Looks for a faster setting: one change after the other, each measured, the best together.

Single changes are measured first, against baselines in between; then those that were visibly faster
are put together, the most effective first, and what is left in question is repeated in turns with
the baseline until it is decided or the time is spent.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from trainprof.tune.loader_candidates import KEPT, PREFETCHING, WORKERS
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
    was_in_vain,
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
    steps_beyond_a_pass,
    steps_of_trials,
    trial_s,
)

# So many changes are measured between two baselines.
_SINGLES_PER_BASELINE: Final = 3
# A bound of what loading costs is measured where this many trials fit: it, a change, the last
# baseline.
_TRIALS_BEHIND_BOUND: Final = (3.0, 4.0)
# The first change is tried with this part of a usual trial's time: 22 of 30 steps still count.
_LEAST_OF_CHANGE: Final = 0.75
# With less of a usual trial's time left, the last baseline would tell nothing.
_LEAST_OF_BASELINE: Final = 0.5
# A run without a step in this many times a usual trial's time hangs; in less it may be slow.
_HANGS_AFTER: Final = 2.0
# Of a trial that is not decided, each time that the search goes on.
_MOST_RUNS: Final = 4
_REPEATED_AT_MOST: Final = 3
# Changes that are of no use where batches that cost nothing are of none.
_OF_LOADING: Final = frozenset({WORKERS, PREFETCHING})
# Where the interval of free data reaches beyond, noise may hide what loading costs.
_MAY_BE_CHANCE: Final = 0.1


class CannotTune(TrainprofError):
    slug: ClassVar[str] = "cannot-tune"
    exit_code: ClassVar[int] = 2


class _Ended(Exception):
    """No more trials; `why`: BUDGET or INTERRUPTED."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass
class Search:
    """Runs trials until it knows, or the budget is spent.

    Attributes:
        plan_of: What the baseline lets expect, given also what a step takes with free data, once
            that is known.
        budget_s: Wall-clock time from now on. Trials that don't fit are not begun.
        trial_steps: After which trials are stopped, None: as many as the budget suggests, or
            `steps_budget_s`, where another budget was given at first.
        directory: Of the `tune` run, as one would type it.
        is_known: Whether a run of a trial was made before: then it takes nothing of the budget.
        tell, keep: Called before and after each run, and after it with all that is known.
        announce: Called with a sentence on what fits into the budget.
    """

    runner: TrialRunner
    plan_of: Callable[[Measured, float | None], Plan]
    budget_s: float
    trial_steps: int | None = None
    steps_budget_s: float | None = None
    directory: Path = Path()
    is_known: Callable[[Trial, int], bool] = lambda trial, number: False
    tell: Callable[[Progress], None] = lambda progress: None
    announce: Callable[[str], None] = lambda sentence: None
    keep: Callable[[Measurements], None] = lambda measurements: None
    now: Callable[[], float] = time.monotonic
    known: Measurements = field(default_factory=Measurements)

    def __post_init__(self) -> None:
        self._steps_budget_s = self.steps_budget_s or self.budget_s
        self._ends_s = self.now() + self.budget_s
        self._has_run = False
        self._expected: int | None = None
        self._usual_s = 0.0  # that a baseline takes
        self._since_baseline = 0
        self._made: Counter[str] = Counter()  # runs by name
        self._waiting: list[str] = []
        self._left_out: list[str] = []

    def run(self) -> Measurements:
        """Returns what was measured; CannotTune if the baseline cannot be."""
        known = self.known
        try:
            base = self._planned_from(self._begin())
            assert known.plan is not None
            self._announce_rest(known.plan)
            self._bounds(known.plan)
            plan = known.plan = self.plan_of(base, known.free_step_s())
            self._singles(plan)
            plan = known.plan = self._with_kept_workers(known.plan)
            self._put_together(plan)
            self._decide()
            if untried_together(known):
                # What one run could not tell from chance, more of them could.
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
            # Between trials: inside of one it is the script's, and its outcome tells.
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
        """Returns the first baseline: the second run, or the first where no more of them fit."""
        if not self.is_known(Trial(WARM_UP), 1):
            longest = duration(longest_trial_s(self.budget_s))
            self.announce(
                f"plan: the first run shows how many trials fit into {duration(self.budget_s)}, "
                f"each ended at a step after about {longest}"
            )
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
        """Counts the warm-up as the baseline: another one would leave no time for a change."""
        if not warm_up.is_ok:
            raise self._too_short(warm_up, warm_up.seconds, takes_s)
        base = self.known.runs[-1] = replace(warm_up, trial=baseline())
        self._usual_s, self._since_baseline = base.seconds, 0
        self.known.first_counts = True
        return base

    def _too_short(self, run: Measured, first_s: float, takes_s: float | None) -> CannotTune:
        needed = "--budget"
        if takes_s is not None:
            needed = as_option(budget_of_a_change(first_s, takes_s))
        steps = f"{run.steps} step{'' if run.steps == 1 else 's'}"
        return CannotTune(
            f"a budget of {duration(self.budget_s)} is too short for this script: a run made "
            f"{steps} in {duration(run.seconds)}",
            hint=f"a baseline and one change need about {needed}",
        )

    def _steps_of_trials(self, warm_up: Measured) -> int | None:
        """Returns after how many steps trials are stopped: beyond a pass where its start tells."""
        steps = steps_of_trials(warm_up, self._steps_budget_s)
        if steps is None or not warm_up.is_ok:
            return steps
        pass_steps = self.plan_of(warm_up, None).steps_of_a_pass
        if pass_steps is None:
            return steps
        return steps_beyond_a_pass(steps, pass_steps, warm_up, self._steps_budget_s)

    def _planned_from(self, base: Measured) -> Measured:
        """Plans, and returns the baseline to plan from: one that the model of loaders meets."""
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
                f"the script hangs, or starts slowly{why}",
                hint=f"its output is in {console}. If it takes so long to start: a longer --budget",
            )
        return CannotTune(
            f"the script as it is cannot be measured: {run.outcome}{why}",
            hint=f"what it wrote is in {console}",
        )

    def _announce_rest(self, plan: Plan) -> None:
        names = [
            candidate.name
            for candidate in plan.candidates
            if not self.is_known(candidate.trial(), 1)
        ]
        if names:
            left = duration(max(self._time_left_s(), 0.0))
            each = f"each trial takes about {duration(self._usual_s)}"
            self.announce(f"{each}: to be tried in the remaining {left}: {', '.join(names)}")

    def _bounds(self, plan: Plan) -> None:
        """Measures what loading costs, where that leaves the time for a change to be tried."""
        if not plan.sites:
            return
        foretold = plan.ceiling if plan.foretells_ceiling else None
        self.known.predicted |= {CEILING: foretold, LOADER_ALONE: plan.alone}
        self._expect([candidate.name for candidate in plan.candidates])
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
            self._expect([candidate.name for candidate in left])
            candidate = left.pop(0)
            if candidate.subject in _OF_LOADING and self._data_is_free_enough(plan):
                note = "no change of loading is tried: free data is no faster"
                if note not in plan.notes:
                    self.known.plan = replace(plan, notes=(*plan.notes, note))
                continue
            self._try(candidate)
        self._expect([])

    def _with_kept_workers(self, plan: Plan) -> Plan:
        """Tries workers that live on, where the fastest are started again for each pass."""
        winner = next(
            (candidate for candidate in winners(self.known, plan) if candidate.subject == WORKERS),
            None,
        )
        runs = [] if winner is None else self.known.comparable(winner.name)
        if winner is None or not runs or runs[0].starts_share() < LEAST_GAIN:
            return plan
        seen = self.plan_of(runs[0], self.known.free_step_s()).candidates
        kept = next((candidate for candidate in seen if KEPT in candidate.overrides), None)
        if kept is None or KEPT in winner.overrides:
            return plan
        both = together([winner, kept])
        least, most = kept.predicted or (1.0, 1.0)
        forecast = None
        if winner.predicted is not None:
            most = max(most, 1 + runs[0].starts_share())
            forecast = (winner.predicted[0] * least, winner.predicted[1] * most)
        follower = replace(both, subject=WORKERS, predicted=forecast)
        self.known.plan = replace(plan, candidates=(*plan.candidates, follower))
        self._expect([follower.name])
        self._try(follower)
        self._expect([])
        return self.known.plan

    def _put_together(self, plan: Plan) -> None:
        """Adds the changes that were visibly faster one by one, the most effective first.

        What made no difference alone may in company: shorter steps need more workers.
        """
        fastest = winners(self.known, plan)
        if len(fastest) < 2:
            return
        taken = [fastest[0]]
        for candidate in fastest[1:]:
            tried = variants(self.known, taken, plan)
            self._expect([together([*variant, candidate]).name for variant in tried])
            for variant in tried:
                both = together([*variant, candidate])
                if not self.known.of(both.name):
                    self._try(both)
            before = speed_of(self.known, together(taken)) or 1.0
            speeds = [speed_of(self.known, together([*each, candidate])) or 0.0 for each in tried]
            if max(speeds) > before * (1 + LEAST_GAIN):
                near = [k for k, x in enumerate(speeds) if x * (1 + LEAST_GAIN) >= max(speeds)]
                taken = [*tried[near[0]], candidate]
        self._expect([])

    def _decide(self) -> None:
        """Repeats what may be best in turns with the baseline, until it is decided."""
        while open_ones := self._to_repeat():
            self._expect([trial.name for trial in open_ones])
            self._measure(baseline())
            for trial in open_ones:
                self._measure(trial)

    def _goes_on(self) -> bool:
        """Whether something is to be repeated behind the last baseline, which may bring it up."""
        # An earlier start ended here: what it left undecided gets as many runs again.
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
            # What it read from disk other trials had in memory, and it has by now.
            self._measure(trial)

    def _data_is_free_enough(self, plan: Plan) -> bool:
        """Whether even batches that cost nothing are no faster: then no loader setting can be."""
        speed = self.known.speedup(_ceiling(plan)) if self.known.tells_ceiling() else None
        if speed is None or speed.mid is None or speed.high is None:
            return False
        return speed.mid < 1 + LEAST_GAIN / 2 and speed.high < 1 + _MAY_BE_CHANCE

    def _last_baseline(self) -> None:
        """The first and the last run are the script as it is: what drifted meanwhile is seen."""
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
            # The last baseline has its time set aside; the first change that is tried has it where
            # there is no more.
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
                longest_s = left_s  # nothing else would fit behind it
            limits = self._limits(trial, min(left_s - aside_s, longest_s))
        limits = replace(limits, killed_after_s=min(limits.killed_after_s, left_s + ENDING_S))
        self._say(trial, None, is_kept=is_known)
        began_s = self.now()
        measured = self.known.judged(self.runner.run(trial, number, limits))
        if is_known:
            self._ends_s += self.now() - began_s
        elif was_in_vain(measured, limits) and (
            # It had the time to make a step, as the baseline does.
            measured.outcome != HUNG or measured.seconds < _HANGS_AFTER * self._usual_s
        ):
            detail = f"the budget was over after {measured.steps} of its steps"
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
            # As many as training has read.
            alone=0
            if plan is None
            else max(math.ceil(steps / plan.steps_per_batch), plan.fewest_alone),
        )

    def _expect(self, names: Sequence[str]) -> None:
        self._waiting = list(names)
        repeats = _REPEATED_AT_MOST if names else 1
        fitting = max(int(self._time_left_s() / self._usual_s), 1)
        self._expected = len(self.known.runs) + min(len(names) + repeats, fitting)

    def _say(self, trial: Trial, measured: Measured | None, *, is_kept: bool) -> None:
        done = len(self.known.runs)
        left_s = max(self._time_left_s(), 0.0)
        expected = None if self._expected is None else max(self._expected, done + 1)
        self.tell(Progress(trial, measured, done, expected, left_s, is_kept))


def _ceiling(plan: Plan) -> Trial:
    return ceiling(plan.free_sites or plan.sites, plan.pass_batches)
