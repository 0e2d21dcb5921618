"""How many cores torch's threads could have to themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainprof.analysis.run.metadata import number_at


def cores_for_threads(cpu: Mapping[str, Any] | None, threads: int) -> float | None:
    """Returns how many cores a run could use, the hyper-threads of one counted as one.

    So many threads torch has by itself: two that compute on the same core hardly gain by it.

    Args:
        cpu: `System.cpu` of the summary.
        threads: That torch computes with, in all ranks.

    Returns:
        None where it is not known. Older runs tell of hyper-threads alone: half as many threads
        as those may be what torch chose.
    """
    physical, usable = number_at(cpu, "cores_physical"), number_at(cpu, "cores_usable")
    if physical is not None:
        return physical
    return usable if usable != 2 * threads else None
