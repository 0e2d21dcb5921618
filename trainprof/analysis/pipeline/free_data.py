"""From when on a trial's batches cost nothing: then its loaders give copies of those kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.loading.fetches import Details
from trainprof.analysis.timeline.events import Bool
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class FreeData:
    """Of a trial whose data was made free.

    Attributes:
        loaders: That feed training and became free, by their ids.
        steps: Which began after the last of them had, shape (n,).
    """

    loaders: frozenset[int]
    steps: Bool

    @property
    def first_step(self) -> int | None:
        """The first of the steps, None where none began by then."""
        return int(np.argmax(self.steps)) if self.steps.any() else None


def free_data(timeline: Timeline, details: Details) -> FreeData | None:
    """Returns what was free, None in any other run.

    Args:
        timeline: Of the process that trains.
        details: Its.
    """
    switches = details[details["kind"] == Kind.FREE_DATA]
    if not len(switches):
        return None
    feeding = {p.loader for p in timeline.passes if p.role == TRAINING}
    loader_of = [timeline.first_of.get(site, site) for site in switches["site"].tolist()]
    switches = switches[np.isin(loader_of, list(feeding))]
    if not len(switches):
        return None
    loaders = frozenset(loader_of) & frozenset(feeding)
    return FreeData(loaders, timeline.step_starts >= switches["start"].max())
