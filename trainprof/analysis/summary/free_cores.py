"""The cores that a run could use, without other programs, hyper-threads counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.summary.levels import number_at

_FULL_PERCENT: Final = 90.0
# Of the cores, and of the time: from here on step times vary visibly.
_MUCH_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True)
class SharedCpu:
    """The cores that a run may use (all of the host's if unknown), over the run.

    Attributes:
        others_share: Of them, kept busy by other programs.
        waited_share: Of the time in which some process waited for a core; an estimate where the
            kernel does not report it.
        is_whole: The run may use all of the cores, so others compete with it.
    """

    cores: int
    others_share: float
    waited_share: float
    is_whole: bool

    @property
    def is_disturbed(self) -> bool:
        """Whether others used enough of the cores to change the run's times."""
        return self.is_whole and min(self.others_share, self.waited_share) >= _MUCH_SHARE


def shared_cpu(cpu: Mapping[str, Any]) -> SharedCpu | None:
    """Returns how other programs shared the CPU, by `System.cpu`; None where unknown."""
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
        # A process that waited for a core of the host may have waited for another core.
        cores, whole, waited = part, sum(part) / len(part), None
    if waited is None:
        waited = 1.0 if whole >= _FULL_PERCENT else 0.0
    usable = number_at(cpu, "cores_usable")
    # A rank that is bound to some cores may use all of those.
    least = len(mine) if "recorded_on" in cpu and isinstance(mine, list) else len(cores)
    return SharedCpu(
        cores=len(cores),
        others_share=min(max((whole - own / len(cores)) / 100, 0.0), 1.0),
        waited_share=waited,
        is_whole=usable is not None and usable >= least,
    )


def _own_part(percents: list[Any], numbers: object) -> list[float]:
    """Returns the load of each core that the run may use; [] for all of them, or if unknown."""
    if not isinstance(numbers, Sequence) or not 0 < len(numbers) < len(percents):
        return []
    own = [percents[at] for at in numbers if isinstance(at, int) and 0 <= at < len(percents)]
    busy = [percent for percent in own if isinstance(percent, (int, float))]
    return busy if len(busy) == len(numbers) else []


def cores_for_threads(cpu: Mapping[str, Any] | None, threads: int) -> float | None:
    """Returns the number of usable cores by `System.cpu`, hyper-threads counted once, or None.

    torch chooses that number of threads: two on one core hardly gain. Older runs recorded
    hyper-threads only, of which torch may have chosen half.

    Args:
        threads: Of torch's operators, in all ranks.
    """
    physical, usable = number_at(cpu, "cores_physical"), number_at(cpu, "cores_usable")
    if physical is not None:
        return physical
    return usable if usable != 2 * threads else None
