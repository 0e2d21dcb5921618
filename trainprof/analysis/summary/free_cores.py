"""The cores that a run could use: without those of other programs, hyper-threads counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.summary.levels import number_at

_FULL_PERCENT: Final = 90.0
# Of the cores, and of the time: from here on step times are felt to wander.
_MUCH_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True)
class SharedCpu:
    """The cores that a run may be on (those of the host where it is unknown which), over the run.

    Attributes:
        others_share: Of them, kept busy by other programs.
        waited_share: Of the time, in which somebody waited for a core; estimated where the kernel
            doesn't report it.
        is_whole: The run may use all of the cores, so that what others take is taken from it.
    """

    cores: int
    others_share: float
    waited_share: float
    is_whole: bool

    @property
    def is_disturbed(self) -> bool:
        """Whether others took so much that the run's own times must show it."""
        return self.is_whole and min(self.others_share, self.waited_share) >= _MUCH_SHARE


def shared_cpu(cpu: Mapping[str, Any]) -> SharedCpu | None:
    """Returns who shared the CPU with a run, by `System.cpu`; None where that is not known."""
    cores = cpu.get("per_core_percent")
    whole = number_at(cpu, "host_percent", "mean")
    own = number_at(cpu, "tree_percent", "mean")
    if whole is None or own is None or not isinstance(cores, list) or not cores:
        return None
    if "other_ranks_percent" in cpu:
        ranks = number_at(cpu, "other_ranks_percent")
        if ranks is None:
            return None
        own += ranks
    waited = number_at(cpu, "pressure_some_share")
    mine = cpu.get("core_numbers")
    if part := _own_part(cores, cpu.get("recorded_on", mine)):
        # Who waited for a core of the host may have waited for one of the others.
        cores, whole, waited = part, sum(part) / len(part), None
    if waited is None:
        waited = 1.0 if whole >= _FULL_PERCENT else 0.0
    usable = number_at(cpu, "cores_usable")
    # A rank that is bound to some of them has those whole.
    least = len(mine) if "recorded_on" in cpu and isinstance(mine, list) else len(cores)
    return SharedCpu(
        cores=len(cores),
        others_share=min(max((whole - own / len(cores)) / 100, 0.0), 1.0),
        waited_share=waited,
        is_whole=usable is not None and usable >= least,
    )


def _own_part(percents: list[Any], numbers: object) -> list[float]:
    """Returns how busy each core is that the run may be on; [] where that is all, or not known."""
    if not isinstance(numbers, Sequence) or not 0 < len(numbers) < len(percents):
        return []
    own = [percents[at] for at in numbers if isinstance(at, int) and 0 <= at < len(percents)]
    busy = [percent for percent in own if isinstance(percent, (int, float))]
    return busy if len(busy) == len(numbers) else []


def cores_for_threads(cpu: Mapping[str, Any] | None, threads: int) -> float | None:
    """Returns how many cores a run could use by `System.cpu`, hyper-threads counted once, or None.

    torch chooses that many threads: two that compute on the same core hardly gain. Older runs have
    hyper-threads alone: half as many threads as those may be what torch chose.

    Args:
        threads: That torch computes with, in all ranks.
    """
    physical, usable = number_at(cpu, "cores_physical"), number_at(cpu, "cores_usable")
    if physical is not None:
        return physical
    return usable if usable != 2 * threads else None
