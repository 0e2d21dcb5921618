"""What of two trials' runs is to be compared: the same stretch of training.

Quick trials make more steps than the script as it is, slow ones may be ended early. What training
does may change meanwhile: a model is unfrozen, a second one joins, samples get longer, a dataset
has all of itself in memory by then. Steps that the other side never came to would be taken for
faster or slower ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.experiments.trial import Measured

# Later steps that take another time by more than this share are of another kind: clocks, caches
# and cores that have just slept make less of a difference between equal ones.
_OTHER_KIND: Final = 0.1


@dataclass(frozen=True, slots=True)
class Alike:
    """Runs of two trials, with the paces to be compared.

    Attributes:
        base, other: Of the script as it is, and of a trial.
        until: Only so many steps of each run count, None: all of them.
    """

    base: Sequence[Measured]
    other: Sequence[Measured]
    until: int | None = None

    @property
    def is_too_short(self) -> bool:
        """Whether the stretch that counts holds too few steps of one side to tell."""
        sides = (self.base, self.other)
        return self.until is not None and any(not _with_pace(side) for side in sides)


def alike(base: Sequence[Measured], other: Sequence[Measured]) -> Alike:
    """Returns runs as they are to be compared.

    All their steps count, unless those that not all of the runs came to are of another kind.
    """
    runs = (*base, *other)
    seen = [run.seen for run in runs if run.seen is not None]
    if len(seen) < len(runs) or not runs:
        return Alike(base, other)
    until = min(one.until for one in seen)
    least = max(_OTHER_KIND, *map(_may_wander, runs))
    if not any(one.until > until and one.drift_beyond(until) > least for one in seen):
        return Alike(base, other)
    return Alike([run.up_to(until) for run in base], [run.up_to(until) for run in other], until)


def _may_wander(run: Measured) -> float:
    """Returns by what share the machine's pace may have changed meanwhile."""
    wandering = 0.0 if run.pace is None else run.pace.wandering
    return max(wandering, run.conditions.get("disturbance", 0.0))


def _with_pace(runs: Sequence[Measured]) -> list[Measured]:
    return [run for run in runs if run.pace is not None]
