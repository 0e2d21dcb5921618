"""What processes that the script has started, which are no workers of loaders, computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.facts import number_at

# Of training on one core, all of them: with less they are idle, or do something else now and then.
_LEAST_SHARE: Final = 0.05
# Of the one that computes most: who does less is somebody's helper.
_WORKS_FROM: Final = 0.2


@dataclass(frozen=True, slots=True)
class ProcessesBeside:
    """They computed in the training phase.

    Attributes:
        count: How many.
        cpu_s: What they computed, on all cores.
        least_s: What that takes, were all of them at it at once.
    """

    count: int
    cpu_s: float
    least_s: float


def processes_beside(case: Case) -> ProcessesBeside | None:
    """Returns them; None where there are none, or where they may be loaders' workers, or ranks."""
    system, cores = case.summary.system, case.cores()
    has_ranks = (case.summary.run.world_size or 1) > 1
    if system is None or cores is None or case.summary.has_workers or has_ranks:
        return None
    children = [one for one in system.processes if one.get("role") == "child"]
    spent_s = [_cpu_s(one, case.training_s) for one in children]
    at_work = [one for one in spent_s if one >= _WORKS_FROM * max(spent_s)]
    cpu_s = sum(at_work)
    if not at_work or cpu_s < _LEAST_SHARE * case.training_s:
        return None
    return ProcessesBeside(len(at_work), cpu_s, cpu_s / max(min(cores, len(at_work)), 1.0))


def _cpu_s(process: Mapping[str, Any], training_s: float) -> float:
    percent = number_at(process.get("cpu_percent"), "mean") or 0.0
    first_s, last_s = (number_at(process, name) or 0.0 for name in ("first_s", "last_s"))
    return percent / 100 * min(max(last_s - first_s, 0.0), training_s)
