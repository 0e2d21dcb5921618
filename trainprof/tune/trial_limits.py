"""How long trials go on: as the budget lets them, and no longer than tells something."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.tune.trial import Limits, Measured, Trial

# A trial gets this part of the budget, of which start-up is taken off.
_TRIALS_IN_BUDGET: Final = 24
_LEAST_TRIAL_S: Final = 2.0
_FEWEST_STEPS: Final = 60
_MOST_STEPS: Final = 1000
# Where a baseline, one change and another trial don't fit, they make fewer steps, and where that is
# too few, the baseline and one change. Long steps tell enough where they are fewer still.
_LEAST_STEPS: Final = 30
_LEAST_LONG_STEPS: Final = 2 * MIN_STEADY_STEPS
_TRIALS_THAT_FIT: Final = (3.0, 2.1)
# No trial gets more of the budget, so that a slow one leaves time for another.
_LARGEST_SHARE: Final = 1 / 2
_WARM_UP_SHARE: Final = 0.1
_LONGEST_WARM_UP_S: Final = 60.0
# However long the warm-up took to start, it trains for a trial's part of the budget, up to this.
_TRAINED_S: Final = 5.0
_LEAST_TRAINED_S: Final = 2.0
# Up to this budget it makes enough steps to serve as the baseline, should a second one not fit.
_SMALL_BUDGET_S: Final = 60.0
# The script as it is and one change, at the least.
_FEWEST_TRIALS: Final = 2
# Kernels and caches are made, and the model is compiled, in a run's first step.
_COSTLY_STEPS: Final = 1
# A trial is ended, at a step, when it takes so many times what the script as it is takes.
_SLOW_TIMES: Final = 5.0
_SLOW_FROM_S: Final = 60.0
# One that comes to no step by then hangs: it is killed after so much more, or a usual trial's time.
_LEAST_GRACE_S: Final = 15.0
# What a trial may take beyond the budget: for the step under way, and to end.
ENDING_S: Final = 5.0
# The estimate of what a trial takes is off by about this factor.
_MARGIN: Final = 1.2
# One that is to see passes end goes so many passes, at the most of the budget's so many parts: two
# starts of passes tell more than one, and take the time of other trials.
_PASSES: Final = ((2.1, 16), (1.1, 10))
# Batches that are kept before data is free, and some until buffers are as they stay.
_BEFORE_FREE_BATCHES: Final = 80
# Quicker trials make so many times as many steps at most.
_MOST_TIMES: Final = 10.0


def limits_of_warm_up(budget_s: float, steps_budget_s: float, asked_steps: int | None) -> Limits:
    """Returns how long the first run goes on, which counts only where time is left for no more.

    `steps_budget_s`: that of the first start, where the search was resumed.
    """
    trained_s = steps_budget_s / _TRIALS_IN_BUDGET
    # Trials as long as asked for read more data, which the warm-up is to bring into memory.
    trained_s = max(trained_s, _LEAST_TRAINED_S) if asked_steps else min(trained_s, _TRAINED_S)
    return Limits(
        asked_steps,
        killed_after_s=budget_s,
        seconds=longest_trial_s(budget_s),
        enough_s=(min(steps_budget_s * _WARM_UP_SHARE, _LONGEST_WARM_UP_S), trained_s),
        enough_steps=_LEAST_STEPS if steps_budget_s <= _SMALL_BUDGET_S else 1,
    )


def longest_trial_s(budget_s: float) -> float:
    return budget_s * _LARGEST_SHARE


def trial_s(first: Measured, steps: int | None) -> float | None:
    """Returns what a run of the script takes, in s, by an earlier one; None: unknown."""
    if first.run_s is not None and (steps or first.steps) >= first.steps:
        return first.seconds
    step_s = _usual_step_s(first)
    if step_s is None and first.steps:
        step_s = first.training_s / first.steps
    if step_s is None:
        return None
    start_up_s = max(first.seconds - first.steps * step_s, 0.0)
    return start_up_s + (steps or first.steps) * step_s


def budget_of_a_change(first_s: float, trial_s: float) -> float:
    """Returns the budget that lets one change be tried, rounded up to 5 s or a minute."""
    needed_s = first_s + _FEWEST_TRIALS * trial_s * _MARGIN
    unit_s = 5 if needed_s < 120 else 60
    return float(math.ceil(needed_s / unit_s) * unit_s)


def as_option(budget_s: float) -> str:
    """Returns a budget as typed: "--budget 45s", "--budget 5m"."""
    minutes, rest = divmod(math.ceil(budget_s), 60)
    return f"--budget {math.ceil(budget_s)}s" if rest else f"--budget {minutes}m"


def _usual_step_s(warm_up: Measured) -> float | None:
    """Returns what a step takes behind the first ones, None where too few were made to tell."""
    if warm_up.pace is not None:
        return warm_up.pace.mean_s
    if warm_up.seen is None or len(warm_up.seen.table) <= _COSTLY_STEPS:
        return None
    return float(np.median(warm_up.seen.table.wall_ns[_COSTLY_STEPS:])) / 1e9


def limits_of_first_baseline(left_s: float, steps: int | None) -> Limits:
    """Returns how long the first baseline goes on: it leaves as much time to a change.

    It has a time limit as later trials have, so that watching the clock costs it the same.
    """
    return Limits(steps, killed_after_s=left_s, seconds=longest_trial_s(left_s))


def limits_of(
    trial: Trial,
    steps: int | None,
    *,
    usual_s: float,
    left_s: float,
    steps_per_batch: float,
    times: float,
    alone: int,
) -> Limits:
    """Returns how long a later trial goes on.

    Args:
        usual_s, left_s: What the baseline takes, and what the budget leaves this trial.
        times: How many times as fast its steps are expected to be: they are as many more. The same
            steps would take a moment, and a core that has just slept computes faster for one.
        alone: Batches to draw from a loader alone, at most.
    """
    if trial.data != "alone" and steps is not None:
        steps = math.ceil(steps * min(max(times, 1.0), _MOST_TIMES))
    if trial.data == "free" and steps is not None:
        steps += math.ceil(_BEFORE_FREE_BATCHES * max(steps_per_batch, 1.0))
    if trial.data == "alone":
        # A run that went to its end has read them all.
        most = math.inf if steps is None else alone
        wanted = math.ceil((steps or 0) / max(steps_per_batch, 1.0))
        steps = int(min(max(wanted, _FEWEST_STEPS) + _BEFORE_FREE_BATCHES, most))
    slow_s = max(usual_s * _SLOW_TIMES, _SLOW_FROM_S)
    seconds = min(left_s, slow_s)
    return Limits(
        steps,
        killed_after_s=seconds + max(usual_s, _LEAST_GRACE_S),
        seconds=seconds,
        is_of_budget=left_s < slow_s,
    )


def steps_beyond_a_pass(
    steps: int, steps_of_a_pass: float, warm_up: Measured, budget_s: float
) -> int:
    """Returns after how many steps trials are stopped, so that they see later passes start."""
    if warm_up.steps == 0 or warm_up.training_s <= 0:
        return steps
    start_up_s = max(warm_up.seconds - warm_up.training_s, 0.0)
    for passes, parts in _PASSES:
        wanted = math.ceil(passes * steps_of_a_pass)
        takes_s = start_up_s + wanted * warm_up.training_s / warm_up.steps
        if takes_s <= budget_s / parts:
            return max(steps, wanted)
    return steps


def steps_of_trials(warm_up: Measured, budget_s: float) -> int | None:
    """Returns after how many steps trials are stopped, None: they go to the script's end."""
    share_s = budget_s / _TRIALS_IN_BUDGET
    if warm_up.run_s is not None and warm_up.run_s <= share_s:
        return None
    if warm_up.steps == 0 or warm_up.training_s <= 0:
        return _FEWEST_STEPS
    step_s = warm_up.training_s / warm_up.steps
    start_up_s = max(warm_up.seconds - warm_up.training_s, 0.0)
    wanted_s = max(share_s - start_up_s, _LEAST_TRIAL_S)
    wanted = min(max(int(wanted_s / step_s), _FEWEST_STEPS), _MOST_STEPS)
    left_s = budget_s - min(warm_up.seconds, longest_trial_s(budget_s))
    fitting = 0
    for trials in _TRIALS_THAT_FIT:
        fitting = int((left_s / trials - start_up_s) / step_s)
        if fitting >= _LEAST_STEPS:
            return min(wanted, fitting)
    return max(fitting, _LEAST_LONG_STEPS)


def duration(seconds: float) -> str:
    """Returns "18 s" or "2m 10s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest} s"
