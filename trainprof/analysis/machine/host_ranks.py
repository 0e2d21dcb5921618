"""What a training process has of its host's cores: which, with how many ranks, beside whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from trainprof.analysis.machine.host_cores import Cores, cores_of
from trainprof.analysis.machine.processes import ticks_of, tree_percent
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.analysis.statistics.time_weighted import Window

# A damaged manifest may tell any number.
_MOST_RANKS: Final = 4096


@dataclass(frozen=True, slots=True)
class HostPart:
    """What one training process has of its host.

    Attributes:
        cores: That it may be on.
        ranks: Of the run, that have to do with them, this one among them; 1 of no ranks.
        recorded_on: Numbers of the cores that the processes recorded with it may be on, its own
            among them; () where they are not known.
        others_percent: Used by ranks on the same cores that had a trainprof of their own, in the
            mean; 100 is one core. None where not all of them are known.
    """

    cores: Cores
    ranks: int = 1
    recorded_on: tuple[int, ...] = ()
    others_percent: float | None = 0.0


def are_ranks(processes: Sequence[TrainingProcess]) -> bool:
    """Whether the training processes of one recording are ranks of a run.

    Args:
        processes: As `training_processes` returns them.
    """
    return len(processes) > 1 and all(one.rank is not None for one in processes[:2])


def parts_of_recordings(
    pairs: Sequence[tuple[Recording, TrainingProcess]],
) -> list[HostPart]:
    """Returns what each of several ranks, with a trainprof each, has of its host.

    Args:
        pairs: The recordings of a run, each with the process that trains.
    """
    hosts = [recording.section("host").get("name") for recording, _ in pairs]
    cores = [cores_of(recording.section("host"), process) for recording, process in pairs]
    used = [_used_percent(recording) for recording, _ in pairs] if len(pairs) > 1 else [None]
    found = []
    for own, (recording, _) in enumerate(pairs):
        here = [at for at, host in enumerate(hosts) if host == hosts[own]]
        # A launcher may bind each rank to cores of its own.
        sharing = [at for at in here if cores[at].may_share(cores[own])]
        told = integer(recording.manifest.get("local_world_size")) or 1
        at_work = max(told if told <= _MOST_RANKS else 1, len(here))
        beside = [used[at] for at in sharing if at != own]
        known = [percent for percent in beside if percent is not None]
        are_known = len(known) == len(beside) and at_work == len(here)
        found.append(
            HostPart(
                cores=cores[own],
                ranks=max(round(at_work * len(sharing) / len(here)), 1),
                recorded_on=cores[own].numbers,
                others_percent=fsum(known) if are_known else None,
            )
        )
    return found


def parts_of_processes(
    recording: Recording, processes: Sequence[TrainingProcess]
) -> list[HostPart]:
    """Returns what each process of one recording has of its host.

    Args:
        recording: Of one trainprof.
        processes: That trained, of this recording.
    """
    alone = parts_of_recordings([(recording, processes[0])])[0]
    cores = [cores_of(recording.section("host"), process) for process in processes]
    is_known = all(one.numbers for one in cores)
    on = {number for one in cores for number in one.numbers} if is_known else set[int]()
    parts = [replace(alone, cores=own, recorded_on=tuple(sorted(on))) for own in cores]
    if not are_ranks(processes):
        return parts
    return [
        replace(part, ranks=sum(one.may_share(part.cores) for one in cores), others_percent=0.0)
        for part in parts
    ]


def _used_percent(recording: Recording) -> float | None:
    """Returns the CPU that its processes used, 100 = one core; None where nothing was sampled."""
    ticks = ticks_of(recording.process_lines)
    if not ticks:
        return None
    return tree_percent(ticks, Window(ticks[0].t_ns, ticks[-1].t_ns)).mean
