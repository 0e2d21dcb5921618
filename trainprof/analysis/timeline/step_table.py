"""The steps as columns: what each took, which are steady; steps that several runs made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.statistics.step_noise import Floats, drift_between, half_split_drift
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.iterations import TRAINING, LoaderIterations, epoch_starts
from trainprof.analysis.timeline.ledger import Attribution, per_step_ns, step_wall_ns
from trainprof.analysis.timeline.steady_state import (
    CHECKPOINT,
    MIN_STEADY_STEPS,
    Steady,
    few_that_save,
    steady_steps,
)
from trainprof.analysis.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class StepTable:
    """Columns of shape (n_steps,), in ns.

    Attributes:
        wall_ns: Of each step, without evaluation.
        per_step: Ledger key to the step's own time under it; the keys add up to `wall_ns`.
        steady: Which steps show how training runs once it has settled.
        candidates: Steps that may be outliers: after warm-up and off the borders of epochs.
        epoch_of: 0-based epoch, -1 where there is none.
        border: Those in which an epoch begins or evaluation ran.
        buffered: Those that may be fed by batches which workers had piled up before.
        cycle: Steps after which waits repeat: workers take turns.
    """

    wall_ns: Int64
    per_step: dict[str, Int64]
    steady: Steady
    candidates: Bool
    epoch_of: Int64
    border: Bool
    buffered: Bool
    cycle: int

    def __len__(self) -> int:
        return len(self.wall_ns)

    @classmethod
    def of(
        cls,
        wall_ns: Int64,
        per_step: dict[str, Int64],
        *,
        epoch_of: Int64,
        border: Bool,
        buffered: Bool,
        cycle: int,
    ) -> StepTable:
        """Finds out which steps are steady, and which may be outliers."""
        steady = steady_steps(wall_ns, border=border, buffered=buffered, cycle=cycle)
        settled = np.arange(len(wall_ns)) >= steady.warmup
        candidates = settled & ~border
        return cls(wall_ns, per_step, steady, candidates, epoch_of, border, buffered, cycle)

    def plain_s(self) -> Floats:
        """Returns the steady steps, without those that save checkpoints where few do, in s."""
        steady = self.steady.mask
        steady_s: Floats = self.wall_ns[steady] / 1e9
        if CHECKPOINT not in self.per_step:
            return steady_s
        return steady_s[~few_that_save(self.per_step[CHECKPOINT][steady])]

    def part(self, chosen: slice) -> StepTable:
        """Returns some steps that follow one another, as if there were no others."""
        return StepTable.of(
            self.wall_ns[chosen],
            {key: ns[chosen] for key, ns in self.per_step.items()},
            epoch_of=self.epoch_of[chosen],
            border=self.border[chosen],
            buffered=self.buffered[chosen],
            cycle=self.cycle,
        )


def step_table(timeline: Timeline, attribution: Attribution, metadata: Metadata) -> StepTable:
    """Works out the steps of a timeline."""
    starts, ends = timeline.step_starts, timeline.steps.ends
    return StepTable.of(
        step_wall_ns(starts, ends, timeline.segments),
        per_step_ns(timeline.events, attribution, starts, ends),
        epoch_of=_epoch_of(timeline),
        border=_epoch_borders(timeline),
        buffered=_buffered(timeline, metadata),
        cycle=_worker_cycle(timeline, metadata),
    )


def _consumed(timeline: Timeline) -> list[LoaderIterations]:
    """Loaders that the training thread consumes in fewer epochs than every other step.

    A loop that makes a new iterator for each step has no borders to speak of.
    """
    return [p for p in timeline.loaders_here() if len(p) * 2 <= len(timeline.steps.ends)]


def _epoch_borders(timeline: Timeline) -> Bool:
    """Returns the steps in which an epoch begins on the training thread, or evaluation ran."""
    ends = timeline.steps.ends
    times = [timeline.segments[:, 0], *(p.start for p in _consumed(timeline))]
    step = np.searchsorted(ends, np.concatenate(times), side="right")
    border = np.zeros(len(ends), dtype=bool)
    border[step[step < len(ends)]] = True
    return border


def _buffered(timeline: Timeline, metadata: Metadata) -> Bool:
    """Steps that may use batches which workers had ready from before a start or evaluation."""
    ends = timeline.steps.ends
    # +1 where a stretch of buffered steps begins, -1 behind it.
    change = np.zeros(len(ends) + 1, dtype=np.int64)
    for p in _consumed(timeline):
        ahead = metadata.batches_ahead(p.loader)
        if p.role != TRAINING or not ahead:
            continue
        refills = np.concatenate([p.start, timeline.segments[:, 1]])
        step = np.unique(np.searchsorted(ends, refills, side="right"))
        np.add.at(change, step, 1)
        np.add.at(change, np.minimum(step + ahead, len(ends)), -1)
    buffered: Bool = np.cumsum(change)[: len(ends)] > 0
    return buffered


def _worker_cycle(timeline: Timeline, metadata: Metadata) -> int:
    """Workers of the loader that feeds training: waits repeat after so many steps."""
    feeder = timeline.feeder()
    if feeder is None or len(feeder) * 2 > len(timeline.steps.ends):
        return 1
    workers = metadata.loader(feeder.loader).get("num_workers")
    return workers if isinstance(workers, int) and 0 < workers <= len(timeline.steps.ends) else 1


def _epoch_of(timeline: Timeline) -> Int64:
    begins = epoch_starts(timeline.loaders)
    return np.searchsorted(begins, timeline.steps.ends, side="right").astype(np.int64) - 1


@dataclass(frozen=True, slots=True)
class Paces:
    """How fast steady steps were, and training with starts of epochs; None: too few to tell."""

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
