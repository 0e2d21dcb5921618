"""Streams that workers share out otherwise in a trial than in the script as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainprof.analysis.speedup import Pace
from trainprof.analysis.stream_batches import exceed, more_batches
from trainprof.experiments.beside_steps import SeenPasses
from trainprof.experiments.trial import Measured, Trial


def passes_at(
    base: Sequence[Measured], other: Sequence[Measured], site: str
) -> list[tuple[Sequence[SeenPasses], Sequence[SeenPasses]]]:
    """Returns, loader by loader, the passes over those of a line that both sides' runs came to."""
    sides = [
        [run.passes[site] for run in side if run.is_ok and site in run.passes]
        for side in (base, other)
    ]
    if not all(sides):
        return []
    return list(zip(zip(*sides[0], strict=False), zip(*sides[1], strict=False), strict=False))


def steps_for_one(base: Sequence[Measured], other: Sequence[Measured], trial: Trial) -> float:
    """Returns how many steps a trial makes where the script as it is makes one, on the same data.

    More than one where other workers share a stream out so that a pass has more batches, which are
    smaller. That it has fewer is no gain: what is not full may be left out. Passes that have more
    than that explains are not on the same data.

    Args:
        base: Runs of the script as it is.
        other: Of the trial.
        trial: That is.
    """
    if trial.data != "real":
        return 1.0
    changed = [site for site in trial.sites if "num_workers" in trial.arguments_at(site)]
    passes = [both for site in changed for both in passes_at(base, other, site)]
    return max((_shared_out(*both) for both in passes), default=1.0)


def _shared_out(base: Sequence[SeenPasses], other: Sequence[SeenPasses]) -> float:
    usual, told = ([one.ended for one in side] for side in (base, other))
    workers = max(one.workers for one in (*base, *other))
    is_repeated = exceed(told, [one for one in usual if one], workers)
    return 1.0 if is_repeated else more_batches(usual, told)


def of_so_many_steps(pace: Pace, steps: float) -> Pace:
    """Returns the pace of what takes so many steps."""
    return replace(
        pace,
        mean_s=pace.mean_s * steps,
        steps_s=None if pace.steps_s is None else pace.steps_s * steps,
        starts_s=None if pace.starts_s is None else pace.starts_s * steps,
    )
