"""What a run shows beside the pace of its steps: how long passes are, and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.summary import RunSummary


@dataclass(frozen=True, slots=True)
class SeenPasses:
    """Of one loader that trains.

    Attributes:
        ended: Batches of the first passes that went on to their end, in order; () where none did.
        workers: That made them.
        begun: Batches of the one that the run was ended in, 0 where it is not known.
    """

    ended: tuple[int, ...]
    workers: int
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Evaluated:
    """All evaluation of a run: its batches, and what it took, in s."""

    batches: int
    seconds: float


def seen_passes(summary: RunSummary) -> Mapping[str, tuple[SeenPasses, ...]]:
    """Returns the passes over streams, by the line that builds their loaders.

    How long those are is for each worker to say; elsewhere a sampler, which workers do not change.
    """
    found: dict[str, tuple[SeenPasses, ...]] = {}
    for one in sorted(summary.loaders, key=lambda loader: loader.id):
        if one.role == TRAINING and one.is_iterable:
            seen = SeenPasses(tuple(one.ended_batches), one.num_workers or 0, _begun(one))
            found[one.site] = (*found.get(one.site, ()), seen)
    return found


def _begun(loader: Loader) -> int:
    is_known = loader.passes == loader.ended + 1 and loader.ended == len(loader.ended_batches)
    return loader.iterations - sum(loader.ended_batches) if is_known else 0


def evaluated(summary: RunSummary) -> Evaluated | None:
    told = summary.evaluation
    return Evaluated(told.iterations, told.seconds) if told.iterations else None
