"""Runs that are not to be compared: something else than what a trial changes made them slower."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from trainprof.analysis.stream_batches import are_other_sizes
from trainprof.analysis.tuning import BASELINE
from trainprof.experiments.trial import WARM_UP, BatchSize, Measured

# Less a step is no matter of the page cache.
COLD_BYTES_PER_STEP: Final = 1 << 20
_COLD_TIMES: Final = 2.0
# A run that took so many times as long as another of the same trial did not do so by chance.
_HELD_UP_TIMES: Final = 2.0


def cold_runs(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of those that read from disk what others had in memory."""
    per_step = {
        run.directory: run.figures["read_bytes"] / max(run.steps, 1)
        for run in runs
        if run.is_ok and "read_bytes" in run.figures and run.trial.name != WARM_UP
    }
    if not per_step:
        return []
    usual = statistics.median(per_step.values())
    limit = max(COLD_BYTES_PER_STEP, _COLD_TIMES * usual)
    return [directory for directory, size in per_step.items() if size > limit]


def held_up_runs(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of those that other runs of the same trial were far faster than.

    What a run shares the machine with can only hold it up: the fastest shows what it can do.
    """
    paces: dict[str, dict[str, float]] = {}
    for run in runs:
        if run.is_ok and run.pace is not None and run.trial.name != WARM_UP:
            paces.setdefault(run.trial.name, {})[run.directory] = run.pace.mean_s
    return [
        directory
        for of_trial in paces.values()
        for directory, mean_s in of_trial.items()
        if mean_s > _HELD_UP_TIMES * min(of_trial.values())
    ]


def runs_on_other_batches(runs: Sequence[Measured]) -> list[str]:
    """Returns the directories of those on free data whose batches are of another size.

    They are copies of the first ones. Where samples come sorted, or grow from pass to pass, those
    are not like the batches that the script as it is was measured on.
    """
    told = (one.batches for one in runs if one.trial.name == BASELINE and one.is_ok)
    usual = next((batches for batches in told if batches), {})
    return [
        run.directory
        for run in runs
        if run.is_ok and run.trial.data == "free"
        if any(
            _differ(usual[site], run.batches[site])
            for site in run.trial.sites
            if site in usual and site in run.batches
        )
    ]


def _differ(one: BatchSize, other: BatchSize) -> bool:
    return are_other_sizes((one.mean, other.mean), (one.error, other.error))
