"""What of the loop's own code is a loss: the model's own work, which grows with the model alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.trend import Growth, growth_of
from trainprof.analysis.ledger import BEFORE_BACKWARD
from trainprof.analysis.run_figures import Training
from trainprof.analysis.step_table import StepTable
from trainprof.analysis.verdict import Evidence

# What takes longer as the model's inputs grow, as a loss then does.
_OF_MODEL: Final = ("forward", "backward")
# Of what the loop's own code has of training: from here on it is a matter of steps.
_IN_STEPS_SHARE: Final = 0.5
# Of how many times as long the loop's own code takes in the end: the model keeps up with it.
_ALIKE_SHARE: Final = 0.5


def is_in_steps(training: Training, lasting_s: float) -> bool:
    """Whether a usual step has the loop's own code: what comes behind an evaluation is in none.

    Args:
        training: What steps took.
        lasting_s: Of the loop's own code, without what comes but once.
    """
    of_step_s = (training.per_step_s or {}).get("other", 0.0)
    return of_step_s * training.steps >= _IN_STEPS_SHARE * lasting_s


def growth_in_loop(steps: StepTable, training: Training, lasting_s: float) -> Growth | None:
    """Returns how the loop's own code takes longer and longer; None where it does not."""
    part = steps.per_step.get("other")
    if part is None or not len(steps) or not is_in_steps(training, lasting_s):
        return None
    return growth_of(part, steps)


def grows_with_model(grown: Growth, steps: StepTable) -> bool:
    """Whether the model takes longer and longer as well, by about as many times."""
    return any(one.times >= _ALIKE_SHARE * grown.times for one in _of_model(steps))


def most_loss_s(grown: Growth | None, steps: StepTable, count: int) -> float:
    """Returns what a loss can take at most of a part that grows while the model does not.

    Args:
        grown: How it does; None where it does not.
        steps: Of the training phase.
        count: How many there were.
    """
    if grown is None or _of_model(steps):
        return math.inf
    return grown.at_start_s * count


def places_of_rest(
    places: Mapping[str, float], of_loss: Mapping[str, float], loss_s: float
) -> dict[str, float]:
    """Returns where in the loop what is no loss lies, in seconds.

    Args:
        places: Of all of it, as a ledger's `other_by_place` has them.
        of_loss: Of the loss; empty where that is not known.
        loss_s: What of that counts.
    """
    of_loss = of_loss or {BEFORE_BACKWARD: loss_s}
    times = loss_s / max(sum(of_loss.values()), loss_s, 1e-9)
    return {
        name: max(spent_s - times * of_loss.get(name, 0.0), 0.0) for name, spent_s in places.items()
    }


def with_loss(
    evidence: Evidence,
    of_loss: Mapping[str, float],
    places: Mapping[str, float],
    steps: StepTable,
) -> Evidence:
    """Tells a verdict what of the loop's own code is computing.

    Args:
        evidence: Without it.
        of_loss: Seconds by place, as looks tell them.
        places: Of all of the loop's own code.
        steps: Of the training phase.
    """
    spent_s = evidence.training.get("other", 0.0)
    lasting_s = max(spent_s - evidence.python_once_s, 0.0)
    grown = growth_in_loop(steps, evidence.steps, lasting_s)
    most_s = most_loss_s(grown, steps, evidence.steps.steps)
    loss_s = min(sum(of_loss.values()), lasting_s, most_s)
    rest = places_of_rest(places, of_loss, loss_s)
    return replace(
        evidence,
        loss_in_loop_s=loss_s,
        other_place=max(rest, key=lambda name: rest[name]) if rest else None,
    )


def _of_model(steps: StepTable) -> list[Growth]:
    """Returns how parts of the model take longer and longer: of those that do."""
    parts = [steps.per_step.get(name) for name in _OF_MODEL]
    grown = [growth_of(part, steps) for part in parts if part is not None]
    return [one for one in grown if one is not None]
