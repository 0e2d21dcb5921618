"""What the page cache hides from trials: all of them read the same first batches."""

from __future__ import annotations

from collections import Counter

from trainprof.analysis.passes import TRAINING
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.tuning import BASELINE
from trainprof.experiments.found import Found
from trainprof.experiments.not_compared import COLD_BYTES_PER_STEP
from trainprof.experiments.trial import WARM_UP, Measured


def kept_in_memory(found: Found, base: RunSummary) -> list[str]:
    """Returns what is to be said where only the first run read from disk.

    Args:
        found: What was measured.
        base: Of the first baseline: where its loader begins a second pass, or trials go to the
            script's end, there is no rest of the data that is still to be read.
    """
    if found.trial_steps is None or _has_begun_again(base):
        return []
    first = [size for run in found.of(WARM_UP) if (size := _read_a_step(run)) is not None]
    later = [size for run in found.comparable(BASELINE) if (size := _read_a_step(run)) is not None]
    if not first or not later:
        return []
    if max(first) <= COLD_BYTES_PER_STEP or max(later) > COLD_BYTES_PER_STEP:
        return []
    return [
        f"the first run read {max(first) / (1 << 20):,.0f} MiB a step from disk, which the trials "
        "had in memory; the rest of the data will be read from disk again"
    ]


def _read_a_step(run: Measured) -> float | None:
    if "read_bytes" not in run.figures or not run.steps:
        return None
    return run.figures["read_bytes"] / run.steps


def _has_begun_again(base: RunSummary) -> bool:
    passes = Counter(
        one.loader for one in base.epochs if one.stage == TRAINING and one.iterations > 1
    )
    return any(count > 1 for count in passes.values())
