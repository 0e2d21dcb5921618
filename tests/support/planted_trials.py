"""A script that is not there: its pace follows from what a trial changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from support import summaries

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import FAILED, HUNG, INTERRUPTED, OK, TIMED_OUT, TOO_FEW_STEPS
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_table import Paces, SeenSteps, StepTable
from trainprof.tune.candidate import Candidate
from trainprof.tune.candidates import Plan
from trainprof.tune.search import Search
from trainprof.tune.trial import Limits, Measured, Trial, TrialRunner


@dataclass
class Planted:
    """What steps take, in s.

    Attributes:
        step_s, starts_s: By what is changed, and what starts of passes add to each step.
        free_s, alone_s: With data that is free, and a batch of the loader alone.
        spread: Of runs of the same setting, as a share (standard deviation).
        start_up_s, slow_starts: Of each process, and of those of some trials, by name.
        failing: Outcomes of trials that fail, by name.
        interrupted_at: The how many-th run Ctrl-C ends, from 1 on.
        later: From which step on steps take how many times as long; None: steps are not told one by
            one.
    """

    step_s: Callable[[Mapping[str, Any]], float]
    free_s: float = 0.004
    alone_s: float = 0.006
    spread: float = 0.0
    steps: int = 200
    start_up_s: float = 2.0
    slow_starts: dict[str, float] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    starts_s: Callable[[Mapping[str, Any]], float] = lambda overrides: 0.0
    interrupted_at: int | None = None
    later: tuple[int, float] | None = None
    seed: int = 0


class FakeRunner:
    """Answers at once, and advances its clock; `ran` lists the names of the trials in order.

    `alter` returns fields of `Measured` that a run of a trial shows otherwise.
    """

    def __init__(
        self,
        planted: Planted,
        alter: Callable[[Trial, int], Mapping[str, Any]] = lambda trial, number: {},
    ) -> None:
        self.planted = planted
        self.alter = alter
        self.ran: list[str] = []
        self.limits: list[Limits] = []
        self.clock_s = 0.0

    def now(self) -> float:
        return self.clock_s

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        planted = self.planted
        self.ran.append(trial.name)
        self.limits.append(limits)
        rng = np.random.default_rng([planted.seed, len(self.ran)])
        mean_s = {
            "real": lambda: planted.step_s(trial.overrides),
            "free": lambda: planted.free_s,
            "alone": lambda: planted.alone_s,
        }[trial.data]() * np.exp(planted.spread * rng.standard_normal())
        steps = planted.steps if limits.steps is None else min(limits.steps, planted.steps)
        steps_s = mean_s * rng.gamma(400.0, 1 / 400.0, size=steps)
        if planted.later is not None:
            begin, times = planted.later
            steps_s[begin:] *= times
        start_up_s = planted.slow_starts.get(trial.name, planted.start_up_s)
        steps_s, was_cut = self._in_time(steps_s, start_up_s, limits)
        outcome = planted.failing.get(trial.name, OK)
        seconds = start_up_s + float(steps_s.sum())
        if seconds > limits.killed_after_s:
            steps_s = steps_s[start_up_s + np.cumsum(steps_s) <= limits.killed_after_s]
            seconds, outcome = limits.killed_after_s, TIMED_OUT if len(steps_s) else HUNG
            was_cut = True
        elif was_cut and len(steps_s) < MIN_STEADY_STEPS:
            outcome = TOO_FEW_STEPS
        if planted.interrupted_at == len(self.ran):
            outcome = INTERRUPTED
        is_ok = outcome == OK
        pace = Pace(float(steps_s.mean()), steps_s) if is_ok else None
        self.clock_s += seconds
        starts_s = planted.starts_s(trial.overrides) if trial.data == "real" else 0.0
        with_starts = pace and replace(
            pace, mean_s=pace.mean_s + starts_s, steps_s=steps_s + starts_s
        )
        measured = Measured(
            trial=trial,
            number=number,
            directory=f"trials/{trial.name}.{number}",
            outcome=outcome,
            detail="ValueError" if outcome == FAILED else None,
            seconds=seconds,
            pace=pace,
            training_pace=None if trial.data == "alone" else with_starts,
            run_s=None,
            steps=len(steps_s),
            training_s=float(steps_s.sum()),
            was_cut=was_cut,
            seen=None if planted.later is None or trial.data == "alone" else seen_steps(steps_s),
        )
        return replace(measured, **self.alter(trial, number))

    def _in_time(self, steps_s: Floats, start_up_s: float, limits: Limits) -> tuple[Floats, bool]:
        """Returns the steps until the one behind which the time was over, and whether it was."""
        if limits.seconds is None:
            return steps_s, False
        ends, until = start_up_s + np.cumsum(steps_s), limits.seconds
        if limits.enough_s is not None:
            in_all_s, trained_s = limits.enough_s
            enough = ends[min(limits.enough_steps, len(ends)) - 1]
            until = min(until, max(in_all_s, float(ends[0]) + trained_s, float(enough)))
        count = min(int(np.searchsorted(ends, until)) + 1, len(steps_s))
        return steps_s[:count], count < len(steps_s)


class Timed(TrialRunner, Protocol):
    """A runner with a clock of its own."""

    def now(self) -> float: ...


def search_of(
    runner: Timed, plan_of: Callable[[Measured, float | None], Plan], **options: Any
) -> Search:
    """Returns a search on the runner's clock."""
    return Search(runner, plan_of, now=runner.now, **options)


def seen_steps(steps_s: Floats, first: int = 0) -> SeenSteps:
    """Returns steps that nothing but their time is known of; the run made `first` before them."""
    none = np.zeros(len(steps_s), dtype=bool)
    table = StepTable.of(
        np.round(steps_s * 1e9).astype(np.int64),
        {},
        epoch_of=none.astype(np.int64),
        border=none,
        buffered=none,
        cycle=1,
    )
    return SeenSteps(table, first, paces_of)


def paces_of(table: StepTable) -> Paces:
    steady_s = table.wall_ns[table.steady.mask] / 1e9
    if len(steady_s) < MIN_STEADY_STEPS:
        return Paces()
    pace = Pace(float(steady_s.mean()), steady_s)
    return Paces(pace, pace)


def plan_of(*candidates: Candidate, sites: tuple[str, ...] = ("train.py:9",)) -> Plan:
    return Plan(sites, candidates, ceiling=(1.5, 4.0), alone=(1.2, 5.0))


def base_summary() -> RunSummary:
    """Returns the script as it is: its loaders are built at train.py:9 and data.py:5."""
    loaders = [summaries.loader("train.py:9"), summaries.loader("data.py:5", id=1)]
    return replace(summaries.slow_loader(), loaders=loaders)


def workers(count: int, low: float = 1.5, high: float = 2.5) -> Candidate:
    return Candidate("workers", {"num_workers": count}, (low, high), sites=("train.py:9",))


def threads(count: int) -> Candidate:
    return Candidate("threads", {"torch_threads": count}, None)
