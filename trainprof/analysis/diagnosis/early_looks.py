"""Whether what a model computes in the few steps that were looked at stands for all of training."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import spent_in
from trainprof.analysis.diagnosis.case import Case

# Of all that forward took, what a part of it can come to by the noise of a few looks.
_MOST_BY_NOISE: Final = 1.25


def are_of_others(case: Case, step_s: float) -> bool:
    """Whether the steps looked at were longer: a part of forward would take more than all of it.

    Args:
        case: The run.
        step_s: Of forward in a step that was looked at.
    """
    return step_s * case.summary.training.steps > _MOST_BY_NOISE * spent_in(case, "forward")


def seen_early(case: Case, steps: int | None) -> list[str]:
    """Says so where the later half was not looked at; `steps` are those up to the newest look."""
    in_all = case.summary.training.steps
    if steps is None or 2 * steps >= in_all:
        return []
    return [f"it was seen in the first {steps:,} of {in_all:,} steps: later ones may differ"]
