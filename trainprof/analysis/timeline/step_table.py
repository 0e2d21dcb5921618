"""The steps as columns: their times, which are steady, and which loaders feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.statistics.step_noise import Floats, drift_between, half_split_drift
from trainprof.analysis.summary.levels import MANY_STEPS
from trainprof.analysis.timeline.iterations import (
    TRAINING,
    LoaderIterations,
    epoch_starts,
    is_used_later,
)
from trainprof.analysis.timeline.ledger import (
    Attribution,
    DeviceWaits,
    attribute,
    per_step_ns,
    step_wall_ns,
)
from trainprof.analysis.timeline.steady_state import (
    CHECKPOINT,
    Steady,
    few_that_save,
    steady_steps,
)
from trainprof.record.schema import Kind

if TYPE_CHECKING:
    from trainprof.analysis.run.metadata import Metadata
    from trainprof.analysis.statistics.speedup import Pace
    from trainprof.analysis.timeline.events import Bool, Int64
    from trainprof.analysis.timeline.timeline import Timeline

# Of steps: a loader that feeds this share feeds all. The first and last step of an epoch may lie
# partly in it, and there may be a step before the first batch.
NEARLY_ALL: Final = 0.9


@dataclass(frozen=True, slots=True)
class StepTable:
    """Columns of shape (n_steps,), in ns.

    Attributes:
        per_step: The step's time by ledger key; the keys add up to `wall_ns`, which excludes
            evaluation.
        candidates: Steps that may be outliers: after warm-up, not at borders of epochs.
        epoch_of: 0-based epoch, -1 without one.
        border: Those in which an epoch begins or evaluation ran.
        buffered: Those that may use batches prepared before.
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
        """Returns consecutive steps, as if there were no others."""
        return StepTable.of(
            self.wall_ns[chosen],
            {key: ns[chosen] for key, ns in self.per_step.items()},
            epoch_of=self.epoch_of[chosen],
            border=self.border[chosen],
            buffered=self.buffered[chosen],
            cycle=self.cycle,
        )


def attributed(timeline: Timeline, metadata: Metadata, waits: DeviceWaits | None) -> Attribution:
    """Assigns the training thread's time to the ledger's keys; `waits` are those for its device."""
    return attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=metadata.device() is not None,
        graph_classes=metadata.graph_classes(),
        device_waits=waits,
    )


def step_table(timeline: Timeline, attribution: Attribution, metadata: Metadata) -> StepTable:
    starts, ends = timeline.step_starts, timeline.steps.ends
    begins = epoch_starts(timeline.loaders)
    return StepTable.of(
        step_wall_ns(starts, ends, timeline.segments),
        per_step_ns(timeline.events, attribution, starts, ends),
        epoch_of=np.searchsorted(begins, ends, side="right").astype(np.int64) - 1,
        border=_epoch_borders(timeline),
        buffered=_buffered(timeline, metadata),
        cycle=_worker_cycle(timeline, metadata),
    )


def _consumed(timeline: Timeline) -> list[LoaderIterations]:
    """Loaders that the training thread consumes, except those with an iterator per step."""
    return [p for p in timeline.loaders_here() if len(p) * 2 <= len(timeline.steps.ends)]


def _epoch_borders(timeline: Timeline) -> Bool:
    ends = timeline.steps.ends
    times = [timeline.segments[:, 0], *(p.start for p in _consumed(timeline))]
    step = np.searchsorted(ends, np.concatenate(times), side="right")
    border = np.zeros(len(ends), dtype=bool)
    border[step[step < len(ends)]] = True
    return border


def _buffered(timeline: Timeline, metadata: Metadata) -> Bool:
    """Steps that may use batches prepared before a start or evaluation."""
    ends, buffered = timeline.steps.ends, np.zeros(len(timeline.steps.ends), dtype=bool)
    for p in _consumed(timeline):
        ahead = metadata.batches_ahead(p.loader)
        if p.role == TRAINING and ahead:
            refills = np.concatenate([p.start, timeline.segments[:, 1]])
            step = np.unique(np.searchsorted(ends, refills, side="right"))
            buffered |= _in_stretches(step, step + ahead, len(ends))
    return buffered


def _in_stretches(first: Int64, behind: Int64, count: int) -> Bool:
    """Returns which of the steps lie in one of the stretches, shape (count,)."""
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, np.minimum(first, count), 1)
    np.add.at(change, np.minimum(behind, count), -1)
    inside: Bool = np.cumsum(change)[:count] > 0
    return inside


def _worker_cycle(timeline: Timeline, metadata: Metadata) -> int:
    """Workers of the loader that feeds training: waits repeat after this number of steps."""
    feeder = timeline.feeder()
    if feeder is None or len(feeder) * 2 > len(timeline.steps.ends):
        return 1
    workers = metadata.loader(feeder.loader).get("num_workers")
    return workers if isinstance(workers, int) and 0 < workers <= len(timeline.steps.ends) else 1


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of steady steps, and of training with epoch starts; None: too few steps."""

    steps: Pace | None = None
    training: Pace | None = None


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """The steps of one run, those from `first` on.

    Attributes:
        paces_of: Returns the paces of a table, or of a part of one.
    """

    table: StepTable
    first: int
    paces_of: Callable[[StepTable], Paces]

    @property
    def until(self) -> int:
        return self.first + len(self.table)

    def paces(self, until: int | None = None) -> Paces:
        """Returns its pace, as if it had ended at step `until`."""
        return self.paces_of(self.table if until is None else self._before(until))

    def drift_beyond(self, until: int) -> float:
        """Returns the share by which its steps from there on differ from those before.

        0 where noise explains it, or too few follow. With too few before, the share by which the
        halves of the later steps differ.
        """
        before = self._before(until).plain_s()
        beyond = self.table.part(slice(max(until - self.first, 0), None)).plain_s()
        if len(beyond) < MANY_STEPS:
            return 0.0
        if len(before) < MANY_STEPS:
            return half_split_drift(beyond, cycle=self.table.cycle)
        return drift_between(before, beyond, cycle=self.table.cycle)

    def _before(self, until: int) -> StepTable:
        return self.table.part(slice(max(until - self.first, 0)))


def shares_of_steps(timeline: Timeline, steps: StepTable) -> dict[int, float]:
    """Returns the share of training's step time that each loader feeds, by id, from 0 to 1.

    Without checkpoints and evaluation, and without loaders that feed no step.
    """
    own_ns = np.maximum(steps.wall_ns - steps.per_step.get("checkpoint", 0), 0)
    whole_ns = float(own_ns.sum())
    shares = {}
    for p in timeline.loaders_here():
        feeding_ns = float(own_ns[_steps_with_batches(p, timeline)].sum())
        if p.role == TRAINING and feeding_ns > 0:
            shares[p.loader] = _share(feeding_ns, whole_ns)
    return shares


def are_all_fed(timeline: Timeline) -> bool:
    """Whether loaders feed nearly all steps: others use cached batches or other data."""
    has_loader = np.zeros(len(timeline.steps.ends), dtype=bool)
    for p in timeline.loaders:
        if p.role == TRAINING:
            has_loader |= _steps_with_batches(p, timeline)
    return _share(float(has_loader.sum()), float(len(has_loader))) == 1.0


def _share(part: float, whole: float) -> float:
    return 1.0 if part >= NEARLY_ALL * whole else part / whole


def _steps_with_batches(p: LoaderIterations, timeline: Timeline) -> Bool:
    """Returns the steps from an epoch's first batch to its last.

    Those in between without a batch use that of the step before.
    """
    ends = timeline.steps.ends
    trained = p.trained()
    first = np.searchsorted(ends, _first_batches(p, timeline)[trained], side="right")
    # The step at an epoch's end belongs to it if it uses the last batch.
    used = is_used_later(p, timeline.learning())[trained]
    last = np.searchsorted(ends, p.end[trained]) - np.where(used, 0, 1)
    last = np.maximum(last, np.searchsorted(ends, p.last_next[trained], side="right"))
    return _in_stretches(first, last + 1, len(ends))


def _first_batches(p: LoaderIterations, timeline: Timeline) -> Int64:
    """Returns when the first batch of each epoch was requested: its iterator may be older."""
    events = timeline.all_events
    asked = np.sort(events.start[events.is_kind(Kind.LOADER_NEXT) & (events.site == p.loader)])
    if len(asked) == 0:
        return p.start
    firsts: Int64 = asked[np.minimum(np.searchsorted(asked, p.start), len(asked) - 1)]
    return firsts
