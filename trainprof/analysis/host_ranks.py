"""How many ranks of a run share the cores of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainprof.analysis.facts import integer, integers
from trainprof.analysis.recording import Recording
from trainprof.analysis.training_process import TrainingProcess

# A damaged manifest may tell any number.
_MOST_RANKS: Final = 4096


def are_ranks(processes: Sequence[TrainingProcess]) -> bool:
    """Whether the training processes of one recording are ranks of a run.

    Args:
        processes: As `training_processes` returns them.
    """
    return len(processes) > 1 and all(one.rank is not None for one in processes[:2])


def ranks_on_cores(
    recording: Recording,
    recordings: Sequence[Recording],
    processes: Sequence[TrainingProcess] = (),
) -> int:
    """Returns how many ranks have to do with the cores that a recording tells of; 1 of no ranks.

    Args:
        recording: Of a rank, or of all ranks of a host.
        recordings: Of the run, this one among them.
        processes: That trained, of this recording.
    """
    if are_ranks(processes):
        return len(processes)
    name = recording.section("host").get("name")
    here = [one for one in recordings if one.section("host").get("name") == name]
    # A launcher may bind each rank to cores of its own.
    sharing = [one for one in here if _may_share_cores(one, recording)]
    told = integer(recording.manifest.get("local_world_size")) or 1
    at_work = max(told if told <= _MOST_RANKS else 1, len(here))
    return max(round(at_work * len(sharing) / len(here)), 1)


def _may_share_cores(one: Recording, other: Recording) -> bool:
    first, second = (integers(x.section("host").get("core_numbers")) for x in (one, other))
    return not first or not second or bool({*first} & {*second})
