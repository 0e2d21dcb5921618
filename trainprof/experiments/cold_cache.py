"""Runs that read from disk what the others had in memory: not to be compared with them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from trainprof.experiments.trial import WARM_UP, Measured

# Less a step is no matter of the page cache.
_COLD_BYTES_PER_STEP: Final = 1 << 20
_COLD_TIMES: Final = 2.0


def cold_runs(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of those that read far more from disk, each step, than usual."""
    per_step = {
        run.directory: run.figures["read_bytes"] / max(run.steps, 1)
        for run in runs
        if run.is_ok and "read_bytes" in run.figures and run.trial.name != WARM_UP
    }
    if not per_step:
        return []
    usual = statistics.median(per_step.values())
    limit = max(_COLD_BYTES_PER_STEP, _COLD_TIMES * usual)
    return [directory for directory, size in per_step.items() if size > limit]
