"""The cores that a training process may use, and the ranks that share them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from trainprof.analysis.machine.processes import ticks_of, tree_percent
from trainprof.analysis.run.metadata import integer, integers, number
from trainprof.analysis.statistics.time_weighted import Window
from trainprof.record.schema import Topic

if TYPE_CHECKING:
    from trainprof.analysis.run.recording import Recording
    from trainprof.analysis.run.training_process import TrainingProcess

# Linux's limit (CONFIG_NR_CPUS of x86-64); a damaged log may hold any number.
_MOST_PROCESSORS: Final = 8192
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
# A damaged manifest may hold any number.
_MOST_RANKS: Final = 4096


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of a host.

    Attributes:
        usable: Their number within the CPU quota; None where unknown.
        physical: The same with the hyper-threads of a core counted once, or None.
        numbers: Of the processors; () where unknown.
    """

    usable: float | None = None
    physical: float | None = None
    numbers: tuple[int, ...] = ()

    def may_share(self, other: Cores) -> bool:
        """Whether another process may use some of them."""
        return not self.numbers or not other.numbers or bool({*self.numbers} & {*other.numbers})


def cores_of(host: Mapping[str, Any], process: TrainingProcess) -> Cores:
    """Returns the cores of a training process and its loaders' workers.

    They may differ from its supervisor's: taskset, numactl, a launcher or script that binds it.
    """
    seen = Cores(
        number(host.get("usable_cores"), 0.0) or None,
        number(host.get("physical_cores"), 0.0) or None,
        tuple(integers(host.get("core_numbers"))),
    )
    own = _recorded_cores(process.metadata.texts[Topic.ENVIRONMENT].values())
    if not own:
        return seen
    for worker in process.workers:
        own |= _recorded_cores(worker.texts_of(Topic.ENVIRONMENT).values())
    if own == {*seen.numbers}:
        return seen
    # Affinity is in the numbers: a smaller number of cores is a quota.
    is_quota = seen.usable is not None and seen.usable < (len(seen.numbers) or _MOST_PROCESSORS)
    most = seen.usable if is_quota and seen.usable is not None else float(len(own))
    physical = _physical(host, own)
    return Cores(
        usable=min(float(len(own)), most),
        physical=None if physical is None else min(float(physical), most),
        numbers=tuple(sorted(own)),
    )


def _physical(host: Mapping[str, Any], own: Collection[int]) -> int | None:
    numbers, cores = integers(host.get("core_numbers")), integers(host.get("core_of"))
    if len(numbers) != len(cores):
        return None
    core_of = dict(zip(numbers, cores, strict=True))
    return len({core_of[number] for number in own}) if core_of.keys() >= {*own} else None


def _recorded_cores(environments: Iterable[Any]) -> set[int]:
    """Returns the processors that a process recorded last."""
    lists = [x["cores"] for x in environments if isinstance(x, dict) and "cores" in x]
    return _numbers(lists[-1]) if lists and isinstance(lists[-1], str) else set()


def _numbers(text: str) -> set[int]:
    """Returns those of a list as the kernel writes it, such as 0-3,8."""
    numbers: set[int] = set()
    for part in text.split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            return set()
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last >= _MOST_PROCESSORS:
            return set()
        numbers.update(range(first, last + 1))
    return numbers


@dataclass(frozen=True, slots=True)
class HostPart:
    """One training process's part of its host.

    Attributes:
        ranks: Number of ranks that share its cores, with itself.
        recorded_on: Numbers of the cores that it and the processes recorded with it may use; ()
            where unknown.
        others_percent: Mean CPU use of ranks on the same cores with their own trainprof; 100 is one
            core. None where some are unknown.
        launched_on: Number of cores that trainprof may use; 0 where unknown.
    """

    cores: Cores
    ranks: int = 1
    launched_on: int = 0
    recorded_on: tuple[int, ...] = ()
    others_percent: float | None = 0.0


def are_ranks(processes: Sequence[TrainingProcess]) -> bool:
    """Whether the training processes of one recording are ranks of a run."""
    return len(processes) > 1 and all(process.rank is not None for process in processes[:2])


def parts_of_recordings(
    pairs: Sequence[tuple[Recording, TrainingProcess]],
) -> list[HostPart]:
    """Returns the host part of each of several ranks with their own trainprof."""
    hosts = [recording.section("host").get("name") for recording, _ in pairs]
    cores = [cores_of(recording.section("host"), process) for recording, process in pairs]
    used = [_used_percent(recording) for recording, _ in pairs] if len(pairs) > 1 else [None]
    parts = []
    for own, (recording, _) in enumerate(pairs):
        here = [at for at, host in enumerate(hosts) if host == hosts[own]]
        # A launcher may bind each rank to different cores.
        sharing = [at for at in here if cores[at].may_share(cores[own])]
        launched = integer(recording.manifest.get("local_world_size")) or 1
        at_work = max(launched if launched <= _MOST_RANKS else 1, len(here))
        beside = [used[at] for at in sharing if at != own]
        known = [percent for percent in beside if percent is not None]
        are_known = len(known) == len(beside) and at_work == len(here)
        parts.append(
            HostPart(
                cores=cores[own],
                ranks=max(round(at_work * len(sharing) / len(here)), 1),
                recorded_on=cores[own].numbers,
                launched_on=len(integers(recording.section("host").get("core_numbers"))),
                others_percent=fsum(known) if are_known else None,
            )
        )
    return parts


def parts_of_processes(
    recording: Recording, processes: Sequence[TrainingProcess]
) -> list[HostPart]:
    """Returns the host part of each process of one recording."""
    alone = parts_of_recordings([(recording, processes[0])])[0]
    cores = [cores_of(recording.section("host"), process) for process in processes]
    is_known = all(own_cores.numbers for own_cores in cores)
    on = {number for own_cores in cores for number in own_cores.numbers} if is_known else set[int]()
    parts = [replace(alone, cores=own, recorded_on=tuple(sorted(on))) for own in cores]
    if not are_ranks(processes):
        return parts
    return [
        replace(
            part,
            ranks=sum(own_cores.may_share(part.cores) for own_cores in cores),
            others_percent=0.0,
        )
        for part in parts
    ]


def _used_percent(recording: Recording) -> float | None:
    """Returns the CPU use of its processes, 100 = one core; None without samples."""
    ticks = ticks_of(recording.process_lines)
    if not ticks:
        return None
    return tree_percent(ticks, Window(ticks[0].t_ns, ticks[-1].t_ns)).mean
