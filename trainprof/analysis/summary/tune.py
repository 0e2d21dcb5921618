"""The summary's part of `tune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# Verdicts of a comparison of paces.
FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_VISIBLE_DIFFERENCE: Final = "no_visible_difference"
UNKNOWN: Final = "unknown"

BASELINE: Final = "baseline"
CEILING: Final = "ceiling"
LOADER_ALONE: Final = "loader_alone"

# Outcomes of a trial. Any but OK has no pace.
OK: Final = "ok"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed out"
# Killed without a step, or long after its last one.
HUNG: Final = "hung"
OUT_OF_MEMORY: Final = "out of memory"
INTERRUPTED: Final = "interrupted"
TOO_FEW_STEPS: Final = "too few steps"
NOT_APPLIED: Final = "not applied"
# The budget ended before it measured anything.
CUT_SHORT: Final = "cut short"
# Outcomes of failed trials.
BROKEN: Final = frozenset({FAILED, TIMED_OUT, HUNG, OUT_OF_MEMORY})

# Why there are no more trials.
FINISHED: Final = "finished"
BUDGET: Final = "budget"
RUNNING: Final = "running"

# The ratio of an interval's ends from which on it is too wide to use.
TOO_NOISY: Final = 10.0


@dataclass(frozen=True, slots=True)
class Times:
    """The speedup over the baseline, with its 95 % interval."""

    low: float | None
    mid: float
    high: float | None


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """All runs of one trial.

    Attributes:
        name: baseline, ceiling, loader_alone, or the overrides: "num_workers=4,pin_memory=True".
        overrides: The changes; {} for the first three. An argument that differs between loaders has
            its values by line.
        steps_per_s: Mean of its runs; of loader_alone the steps that its batches suffice for.
        speedup: Over the baseline, or None.
        verdict: faster|slower|no_visible_difference|unknown, of `speedup`.
        predicted: The model's interval from before the trial, or None.
        held: Whether the interval of `speedup` lies inside `predicted` (True), outside (False), or
            partly (None, as without a prediction).
        runs: Their number.
        directories: Of the runs, inside the run directory.
        outcome: As above; of several runs the worst.
        detail: Of the outcome, such as the exception.
        losses: same|other|None: compared with the baseline's; None: unknown, or not reproducible.
        losses_apart: If other, the largest difference as a share of the baseline's; None if losses
            are not finite.
        refused: What could not be changed, and why.
        against: Why not to take it, however fast.
        peak_memory_bytes: Of the process tree.
        was_cut: A run's time ended before its steps did; the steps until then count.
        is_least: Its speedup is a lower bound: a GPU may have overlapped some of copying batches.
        disturbance: The share by which other processes may have slowed it.
    """

    name: str
    overrides: dict[str, Any]
    steps_per_s: float | None
    speedup: Times | None
    verdict: str
    predicted: list[float] | None
    held: bool | None
    runs: int
    directories: list[str]
    outcome: str
    detail: str | None = None
    losses: str | None = None
    losses_apart: float | None = None
    refused: dict[str, str] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    peak_memory_bytes: float | None = None
    steps: int | None = None
    was_cut: bool = False
    is_least: bool = False
    disturbance: float = 0.0


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended setting.

    Attributes:
        sites: The lines that build its loaders.
        change: In code, one change per line.
    """

    overrides: dict[str, Any]
    speedup: Times
    name: str
    sites: list[str]
    change: list[str]
    cautions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A `tune` run as a whole.

    Attributes:
        budget_s, spent_s: Of time.
        trial_steps: Steps after which trials were stopped; None: they ran to the end.
        ended_by: finished|budget|interrupted|running: why there are no more trials.
        unfinished: The next trials.
        uncontained: What trials did outside the sandbox: "wrote PATH".
        is_sandboxed: Whether trials left your files unchanged.
        notes: Further facts, as sentences.
        needed_budget_s: The budget for one change, where this one was too small; else None.
    """

    budget_s: float
    spent_s: float
    trial_steps: int | None
    ended_by: str
    unfinished: list[str]
    uncontained: list[str] = field(default_factory=list)
    is_sandboxed: bool = True
    notes: list[str] = field(default_factory=list)
    needed_budget_s: float | None = None
