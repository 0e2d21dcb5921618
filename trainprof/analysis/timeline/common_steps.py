"""The steps of a run one by one: those that other runs made too can be judged without the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.statistics.step_noise import drift_between, half_split_drift
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_table import StepTable


@dataclass(frozen=True, slots=True)
class Paces:
    """How fast steady steps were, and training with starts of passes; None: too few to tell."""

    steps: Pace | None = None
    training: Pace | None = None


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """Of one run.

    Attributes:
        table: Its steps, or those from some step on.
        first: How many steps it had made before them.
        paces_of: Returns what a table, or a part of one, tells.
    """

    table: StepTable
    first: int
    paces_of: Callable[[StepTable], Paces]

    @property
    def until(self) -> int:
        """After how many steps it ended."""
        return self.first + len(self.table)

    def paces(self, until: int | None = None) -> Paces:
        """Returns how fast it was, as if it had been ended after so many steps."""
        return self.paces_of(self.table if until is None else self._before(until))

    def drift_beyond(self, until: int) -> float:
        """Returns by what share its steps from there on differ from those before.

        0 where noise explains it, or there are too few beyond. Where there are too few before, by
        what share the halves of those beyond differ.

        Args:
            until: After how many steps of the run.
        """
        before = self._before(until).plain_s()
        beyond = self.table.part(slice(max(until - self.first, 0), None)).plain_s()
        if len(beyond) < MIN_STEADY_STEPS:
            return 0.0
        if len(before) < MIN_STEADY_STEPS:
            return half_split_drift(beyond, cycle=self.table.cycle)
        return drift_between(before, beyond, cycle=self.table.cycle)

    def _before(self, until: int) -> StepTable:
        return self.table.part(slice(max(until - self.first, 0)))
