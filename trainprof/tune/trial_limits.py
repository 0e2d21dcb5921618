"""Chooses the length of trials: long enough to measure, short enough for the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.tune.trial import Limits, Measured, Trial

# A trial gets this part of the budget, start-up included.
_TRIALS_IN_BUDGET: Final = 24
_LEAST_TRIAL_S: Final = 2.0
_FEWEST_STEPS: Final = 60
_MOST_STEPS: Final = 1000
# Trials make fewer steps if a baseline, a change and another trial don't fit, then if a baseline
# and a change don't. A few long steps are enough.
_LEAST_STEPS: Final = 30
LEAST_LONG_STEPS: Final = 2 * MIN_STEADY_STEPS
_TRIALS_THAT_FIT: Final = (3.0, 2.1)
# Largest part of the budget for one trial, so that a slow one leaves time for another.
_LARGEST_SHARE: Final = 1 / 2
_WARM_UP_SHARE: Final = 0.1
_LONGEST_WARM_UP_S: Final = 60.0
# After start-up the warm-up trains for a trial's part of the budget, at most this.
_TRAINED_S: Final = 5.0
_LEAST_TRAINED_S: Final = 2.0
# Up to this budget the warm-up makes enough steps to serve as the baseline.
_SMALL_BUDGET_S: Final = 60.0
# A baseline and one change.
_FEWEST_TRIALS: Final = 2
# First steps that load kernels, fill caches and compile.
_COSTLY_STEPS: Final = 1
# A trial is ended at a step after this multiple of the baseline's time, but not before this time.
_SLOW_TIMES: Final = 5.0
_SLOW_FROM_S: Final = 60.0
# A trial without a step by then hangs: it is killed after this, or the time of a usual trial.
_LEAST_GRACE_S: Final = 15.0
# Largest overrun of the budget: the current step and the end of the process.
ENDING_S: Final = 5.0
# Error of the estimated duration of a trial.
_MARGIN: Final = 1.2
# Epochs of a trial that is to see epochs end, and the part of the budget that they may take: two
# epoch starts are more accurate than one, but take time from other trials.
_EPOCHS: Final = ((2.1, 16), (1.1, 10))
# Batches kept before replay begins, and some until buffers are steady.
_BEFORE_FREE_BATCHES: Final = 80
# Faster trials make at most this multiple of steps.
_MOST_TIMES: Final = 10.0
# Usual repeats of undecided trials and baselines.
_REPEATS: Final = 3
_SETTINGS_PER_BASELINE: Final = 3
_BOUNDS: Final = 2  # ceiling and loader alone


def limits_of_warm_up(budget_s: float, steps_budget_s: float, asked_steps: int | None) -> Limits:
    """Returns the length of the first run, which counts only if no second baseline fits.

    `steps_budget_s`: the budget of the first start of a resumed search.
    """
    trained_s = steps_budget_s / _TRIALS_IN_BUDGET
    # Longer trials read more data, which the warm-up brings into the page cache.
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
    """Returns the duration of a run in s, estimated from the first; None if unknown."""
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
    """Returns the budget for a baseline and one change, rounded up to 5 s or a minute."""
    needed_s = first_s + _FEWEST_TRIALS * trial_s * _MARGIN
    unit_s = 5 if needed_s < 120 else 60
    return float(math.ceil(needed_s / unit_s) * unit_s)


def as_option(budget_s: float) -> str:
    """Returns a budget as typed: "--budget 45s", "--budget 5m"."""
    minutes, rest = divmod(math.ceil(budget_s), 60)
    return f"--budget {math.ceil(budget_s)}s" if rest else f"--budget {minutes}m"


def _usual_step_s(warm_up: Measured) -> float | None:
    """Returns the time of a step after the first ones, None with too few."""
    if warm_up.pace is not None:
        return warm_up.pace.mean_s
    if warm_up.seen is None or len(warm_up.seen.table) <= _COSTLY_STEPS:
        return None
    return float(np.median(warm_up.seen.table.wall_ns[_COSTLY_STEPS:])) / 1e9


def limits_of_first_baseline(left_s: float, steps: int | None) -> Limits:
    """Returns the length of the first baseline, which leaves the same time to a change.

    It has a time limit like later trials, so that checking the clock costs it the same.
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
    """Returns the length of a later trial.

    Args:
        usual_s, left_s: Duration of the baseline, and budget left for this trial.
        times: Expected speedup, by which it makes more steps: a shorter trial would be measured on
            cores that have just slept and run faster.
        alone: Batches to draw from a loader alone, at most.
    """
    if trial.data != "alone" and steps is not None:
        steps = math.ceil(steps * min(max(times, 1.0), _MOST_TIMES))
    if trial.data == "free" and steps is not None:
        steps += math.ceil(_BEFORE_FREE_BATCHES * max(steps_per_batch, 1.0))
    if trial.data == "alone":
        # A run to the script's end has read all batches.
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


def steps_beyond_epoch(
    steps: int, steps_of_epoch: float, warm_up: Measured, budget_s: float
) -> int:
    """Returns the steps of a trial that is to see later epochs start, if the budget allows."""
    if warm_up.steps == 0 or warm_up.training_s <= 0:
        return steps
    start_up_s = max(warm_up.seconds - warm_up.training_s, 0.0)
    for epochs, parts in _EPOCHS:
        wanted = math.ceil(epochs * steps_of_epoch)
        takes_s = start_up_s + wanted * warm_up.training_s / warm_up.steps
        if takes_s <= budget_s / parts:
            return max(steps, wanted)
    return steps


def steps_of_trials(warm_up: Measured, budget_s: float) -> int | None:
    """Returns the steps of a trial, None if trials run to the script's end."""
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
    return max(fitting, LEAST_LONG_STEPS)


def plan_sentence(names: Sequence[str], has_bounds: bool, trial_s: float, budget: str) -> str:
    """Returns the settings to try, their estimated time and the budget."""
    baselines = math.ceil(len(names) / _SETTINGS_PER_BASELINE)
    trials = len(names) + baselines + (_BOUNDS if has_bounds else 0) + _REPEATS
    settings = f"{len(names)} setting{'' if len(names) == 1 else 's'}"
    return (
        f"plan: about {duration(trials * trial_s)} for {settings}, {duration(trial_s)} a trial "
        f"({budget}): {', '.join(names)}"
    )


def duration(seconds: float) -> str:
    """Returns "18 s" or "2m 10s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest} s"
