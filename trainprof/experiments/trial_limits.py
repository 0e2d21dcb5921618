"""How long trials go on: as the budget lets them, and no longer than tells something."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from trainprof.experiments.trial import Limits, Measured, Trial

# A trial gets this part of the budget, of which start-up is taken off.
_TRIALS_IN_BUDGET: Final = 24
_LEAST_TRIAL_S: Final = 2.0
_FEWEST_STEPS: Final = 60
_MOST_STEPS: Final = 1000
_WARM_UP_SHARE: Final = 0.1
_LONGEST_WARM_UP_S: Final = 60.0
_LEAST_WARM_UP_S: Final = 10.0
# It trains for a trial's part of the budget, up to so long, however long it took to begin.
_TRAINED_S: Final = 5.0
# Of a small budget it takes no more than this part, as long as it makes some steps.
_MOST_OF_BUDGET: Final = 1 / 6
_SOME_STEPS_S: Final = 2.0
# Of so many steps as are asked for: the script as it is and one change, at the least; with the two
# bounds, another change and the script as it is again they tell something.
_FEWEST_TRIALS: Final = 2
_TELLING_TRIALS: Final = 6
# Kernels and caches are made, and the model is compiled, in a run's first step.
_COSTLY_STEPS: Final = 1
# A trial is ended, at a step, when it takes so many times what the script as it is takes.
_SLOW_TIMES: Final = 5.0
_SLOW_FROM_S: Final = 60.0
# One that comes to no step by then hangs: it is killed after so much more, or a usual trial's time.
_LEAST_GRACE_S: Final = 15.0
# Until the first trial has told how long they are: that, or the budget.
_FIRST_MAY_TAKE_S: Final = 600.0
# One that is to see passes end goes so many passes, at the most of the budget's so many parts: two
# starts of passes tell more than one, and take the time of other trials.
_PASSES: Final = ((2.1, 16), (1.1, 10))
# Batches that are kept before data is free, and some until buffers are as they stay.
_BEFORE_FREE_BATCHES: Final = 80
# Quicker trials make so many times as many steps at most.
_MOST_TIMES: Final = 10.0


def limits_of_warm_up(budget_s: float, steps_budget_s: float, asked_steps: int | None) -> Limits:
    """Returns how long the discarded first run goes on.

    Args:
        budget_s: Of all trials.
        steps_budget_s: That it was at first.
        asked_steps: After which trials are to be stopped, None: as many as the budget suggests. It
            ends there, or when a trial of that would: what a step takes is known by then.
    """
    share_s = max(steps_budget_s * _WARM_UP_SHARE, _LEAST_WARM_UP_S)
    most_s = max(steps_budget_s * _MOST_OF_BUDGET, _SOME_STEPS_S)
    seconds = max(budget_s, _FIRST_MAY_TAKE_S)
    enough_s = min(share_s, _LONGEST_WARM_UP_S, most_s)
    trained_s = steps_budget_s / _TRIALS_IN_BUDGET
    # Trials that long as asked for read more, which it is to put into memory.
    trained_s = max(trained_s, _SOME_STEPS_S) if asked_steps else min(trained_s, _TRAINED_S)
    return Limits(
        asked_steps,
        seconds + _LEAST_GRACE_S,
        seconds=seconds,
        enough_s=(enough_s, trained_s),
    )


def budget_for(asked_steps: int, warm_up: Measured, budget_s: float) -> float | None:
    """Returns a budget that trials of so many steps fit into; None where they may fit into this.

    Args:
        asked_steps: After which trials are to be stopped.
        warm_up: The discarded first run: what its steps take is more likely too much than too
            little, as they are the first.
        budget_s: Of all trials.
    """
    step_s = _usual_step_s(warm_up)
    if step_s is None or warm_up.run_s is not None:
        return None
    if _FEWEST_TRIALS * asked_steps * step_s <= budget_s:
        return None
    start_up_s = max(warm_up.seconds - warm_up.training_s, 0.0)
    return warm_up.seconds + _TELLING_TRIALS * (start_up_s + asked_steps * step_s)


def _usual_step_s(warm_up: Measured) -> float | None:
    """Returns what a step takes behind the first ones, None where too few were made to tell."""
    if warm_up.pace is not None:
        return warm_up.pace.mean_s
    if warm_up.seen is None or len(warm_up.seen.table) <= _COSTLY_STEPS:
        return None
    return float(np.median(warm_up.seen.table.wall_ns[_COSTLY_STEPS:])) / 1e9


def limits_of_first_baseline(budget_s: float, steps: int | None) -> Limits:
    """Returns how long the script as it is goes on at first: nobody knows how long it takes.

    It has a limit as later trials have, so that it is watched at the same cost.
    """
    seconds = max(budget_s, _FIRST_MAY_TAKE_S)
    return Limits(steps, seconds + _LEAST_GRACE_S, seconds=seconds)


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
        trial: What is run.
        steps: After which trials are stopped, None: never.
        usual_s: What the script as it is takes.
        left_s: What the budget leaves this trial.
        steps_per_batch: Updates for each batch of the feeding loader.
        times: How many times as fast its steps are expected to be: they are as many more. The same
            steps would take a moment, and a core that has just slept computes faster for one.
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
    """Returns after how many steps trials are stopped, that they see later passes start.

    Args:
        steps: That they would make otherwise: as many where more take too much of the budget.
        steps_of_a_pass: Or a few more than it has.
        warm_up: The discarded first run.
        budget_s: Of all trials.
    """
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
    """Returns after how many steps trials are stopped, None: they go to the script's end.

    Args:
        warm_up: The discarded first run.
        budget_s: Of all trials.
    """
    share_s = budget_s / _TRIALS_IN_BUDGET
    if warm_up.run_s is not None and warm_up.run_s <= share_s:
        return None
    if warm_up.steps == 0 or warm_up.training_s <= 0:
        return _FEWEST_STEPS
    step_s = warm_up.training_s / warm_up.steps
    start_up_s = max(warm_up.seconds - warm_up.training_s, 0.0)
    wanted_s = max(share_s - start_up_s, _LEAST_TRIAL_S)
    return min(max(int(wanted_s / step_s), _FEWEST_STEPS), _MOST_STEPS)
