"""The cores that a training process may be on: as its supervisor had them, or as it was bound."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.run.metadata import integers, number
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.record.schema import Topic

# Linux's own limit (CONFIG_NR_CPUS of x86-64); a damaged log may tell any number.
_MOST_PROCESSORS: Final = 8192
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Cores:
    """Some of a host's.

    Attributes:
        usable: How many can be kept busy, a CPU quota considered; None where nobody told.
        physical: The same with the hyper-threads of a core counted once, or None.
        numbers: Of the processors; () where they are not known.
    """

    usable: float | None = None
    physical: float | None = None
    numbers: tuple[int, ...] = ()

    def may_share(self, other: Cores) -> bool:
        """Whether some may be among another process's."""
        return not self.numbers or not other.numbers or bool({*self.numbers} & {*other.numbers})


def cores_of(host: Mapping[str, Any], process: TrainingProcess) -> Cores:
    """Returns the cores of a process and its loaders' workers.

    They may be others than trainprof's own: of a command such as taskset or numactl, of a launcher
    that binds its ranks, of a script that binds itself.

    Args:
        host: Of the manifest.
        process: That trains. One that did not tell has its supervisor's.
    """
    seen = Cores(
        number(host.get("usable_cores"), 0.0) or None,
        number(host.get("physical_cores"), 0.0) or None,
        tuple(integers(host.get("core_numbers"))),
    )
    own = _told(process.metadata.texts[Topic.ENVIRONMENT].values())
    if not own:
        return seen
    for worker in process.workers:
        own |= _told(worker.texts_of(Topic.ENVIRONMENT).values())
    if own == {*seen.numbers}:
        return seen
    # What affinity leaves is in the numbers: less than that is a quota.
    is_quota = seen.usable is not None and seen.usable < (len(seen.numbers) or _MOST_PROCESSORS)
    most = seen.usable if is_quota and seen.usable is not None else float(len(own))
    physical = _physical(host, own)
    return Cores(
        usable=min(float(len(own)), most),
        physical=None if physical is None else min(float(physical), most),
        numbers=tuple(sorted(own)),
    )


def _physical(host: Mapping[str, Any], own: Collection[int]) -> int | None:
    """Returns how many cores some processors are threads of, None where that is not known."""
    numbers, cores = integers(host.get("core_numbers")), integers(host.get("core_of"))
    if len(numbers) != len(cores):
        return None
    core_of = dict(zip(numbers, cores, strict=True))
    return len({core_of[one] for one in own}) if core_of.keys() >= {*own} else None


def _told(environments: Iterable[Any]) -> set[int]:
    """Returns the processors that a process told last; none where it did not."""
    told = [x["cores"] for x in environments if isinstance(x, dict) and "cores" in x]
    return _numbers(told[-1]) if told and isinstance(told[-1], str) else set()


def _numbers(text: str) -> set[int]:
    """Returns those of a list as the kernel writes it, such as 0-3,8."""
    found: set[int] = set()
    for part in text.split(","):
        told = _RANGE.fullmatch(part)
        if told is None:
            return set()
        first, last = int(told[1]), int(told[2] or told[1])
        if last >= _MOST_PROCESSORS:
            return set()
        found.update(range(first, last + 1))
    return found
