"""What is worth changing, as the summary has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# Among the evidence: how many times faster training would be, most likely, or at most.
LIKELY: Final = "likely_speedup"
# Likewise: the loader that a finding is about.
LOADER_ID: Final = "loader_id"
# Likewise: optimizers that are to be changed besides that at its site, as "class file:line".
OTHER_OPTIMIZERS: Final = "other_optimizers"
# Likewise: the packages that build optimizers and have to be told their arguments, by "file:line".
OPTIMIZER_BUILDERS: Final = "optimizers_built_by"
# Likewise: how many workers the model gave it, where the gain is the model's.
MODELLED_WORKERS: Final = "modelled_workers"
# Likewise: it comes once in a run, and makes training no faster that goes on for longer.
COMES_ONCE: Final = "comes_once"
# Likewise: seconds that may be why other findings are there, which cost no more; None: any.
EXPLAINS_S: Final = "kept_s"
# What lies outside of steady steps, or is the change itself that halves of a run differ by.
NO_MATTER_OF_NOISE: Final = (
    "worker_restart",
    "slow_validation",
    "slow_checkpoints",
    "recompiling",
    "growing_backward",
)
# What these cost is unknown, or known at most, but every other figure of the run depends on it.
SLOWS_EVERYTHING: Final = (
    "duplicated_stream",
    "anomaly_detection",
    "thread_count",
)
# What is full of waiting threads has no cores left for the making of batches, by the root.
EXPLAINED_BY: Final = {
    "saturated_cpu": ("thread_count",),
    "too_few_workers": ("thread_count",),
    "slow_samples": ("thread_count",),
    # Memory that was given back has to be asked for again, while work is given out.
    "launch_bound": ("exposed_syncs",),
}
# What rules of earlier versions found, by their names: the rules that find it now.
MERGED: Final = {
    "crowded_cores": "saturated_cpu",
    "idle_workers": "too_few_workers",
    "uneven_batches": "slow_samples",
    "needless_workers": "worker_restart",
    "slow_pass_starts": "worker_restart",
    "slow_first_batch": "worker_restart",
    "torch_threads": "thread_count",
    "few_threads": "thread_count",
    "worker_threads": "thread_count",
    "emptied_cache": "exposed_syncs",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds training back, and what to do about it.

    Attributes:
        id: The rule that found it.
        severity: high|warn|note, by what could be gained.
        title: The measured fact with its cause, one sentence without a full stop.
        evidence: The numbers that it rests on, by name with their unit at its end (`_s`, `_share`).
        site: The user's file:line to change or to look at, None where none is known.
        advice: The change, in words or code.
        change: Its arguments, where it is a matter of arguments: {"num_workers": 4}.
        recoverable_s: Of the whole run, most likely (at most, where `is_at_most`). Those of several
            findings do not add up.
        predicted_speedup: Of training's steps [low, high] where `of_steps`, else of all training,
            evaluation and checkpoints included.
        run_speedup: Of the whole run [low, high].
        is_at_most: What the rest of the cost would be is not known: low is 1.
        cautions: What the change alters, or needs.
        also: What else contributes, or comes of it.
        thresholds: From which values on it is found, by name.
        steps: Those that show it best: step (from 0), seconds, part_s of them.
        verify: How to see whether it is true.
        is_tried_by_tune: `tune` measures its change.
    """

    id: str
    severity: str
    title: str
    evidence: dict[str, Any]
    site: str | None
    advice: str
    change: dict[str, Any]
    recoverable_s: float | None
    predicted_speedup: list[float] | None
    run_speedup: list[float] | None
    is_at_most: bool
    cautions: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    verify: str = ""
    of_steps: bool = False
    is_tried_by_tune: bool = False


# Why a finding was passed over.
IN_NOISE: Final = "noise"
LITTLE: Final = "little"
MAY_LOSE: Final = "may_lose"
SYMPTOM: Final = "symptom"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What a rule found and is not told, with the reason.

    Attributes:
        finding: As the rule found it.
        why: noise: its gain stays under what the run's own noise lets show; little: it would not
            be worth a change; may_lose: it may as well cost something; symptom: it comes of
            another finding.
        least_gain: From which gain on it would be told, as a share of the pace; None where that is
            not the reason.
        root: Of a symptom: the finding that it comes of.
    """

    finding: Finding
    why: str
    least_gain: float | None = None
    root: str | None = None


def may_lose(finding: Finding) -> bool:
    """Whether a change may cost more than it may gain."""
    if finding.predicted_speedup is None:
        return False
    low, high = finding.predicted_speedup
    return low * high < 1


def leads(finding: Finding) -> bool:
    """Whether it stands ahead of all others: what it costs them is not known."""
    return finding.id in SLOWS_EVERYTHING and finding.evidence.get(EXPLAINS_S) != 0.0


def comes_once(finding: Finding) -> bool:
    """Whether it makes training no faster that goes on for longer than the run."""
    return bool(finding.evidence.get(COMES_ONCE))


def is_unsure(finding: Finding) -> bool:
    """Whether a change may as well lose."""
    return finding.predicted_speedup is not None and finding.predicted_speedup[0] < 1
