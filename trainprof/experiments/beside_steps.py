"""What a run shows beside the pace of its steps: how long passes are, and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainprof.analysis.passes import TRAINING
from trainprof.analysis.summary import RunSummary


@dataclass(frozen=True, slots=True)
class EndedPasses:
    """Of one loader that trains.

    Attributes:
        batches: Of the first passes that went on to their end, in order; () where none did.
        workers: That made them.
    """

    batches: tuple[int, ...]
    workers: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """All evaluation of a run: its batches, and what it took, in s."""

    batches: int
    seconds: float


def ended_passes(summary: RunSummary) -> Mapping[str, tuple[EndedPasses, ...]]:
    """Returns the passes over streams, by the line that builds their loaders.

    How long those are is for each worker to say; elsewhere a sampler, which workers do not change.
    """
    found: dict[str, tuple[EndedPasses, ...]] = {}
    for one in sorted(summary.loaders, key=lambda loader: loader.id):
        if one.role == TRAINING and one.is_iterable:
            ended = EndedPasses(tuple(one.ended_batches), one.num_workers or 0)
            found[one.site] = (*found.get(one.site, ()), ended)
    return found


def evaluated(summary: RunSummary) -> Evaluated | None:
    told = summary.evaluation
    return Evaluated(told.iterations, told.seconds) if told.iterations else None
