"""What `tune` measured, as the summary has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# What a comparison of paces says.
FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_VISIBLE_DIFFERENCE: Final = "no_visible_difference"
UNKNOWN: Final = "unknown"

BASELINE: Final = "baseline"
CEILING: Final = "ceiling"
LOADER_ALONE: Final = "loader_alone"

# How a trial came out. Any but OK is a result too, without a pace.
OK: Final = "ok"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed out"
# Killed without a step, or long after its last one.
HUNG: Final = "hung"
OUT_OF_MEMORY: Final = "out of memory"
INTERRUPTED: Final = "interrupted"
TOO_FEW_STEPS: Final = "too few steps"
NOT_APPLIED: Final = "not applied"
# The budget was over before it had told anything.
CUT_SHORT: Final = "cut short"
# Those of a trial that did not come through.
BROKEN: Final = frozenset({FAILED, TIMED_OUT, HUNG, OUT_OF_MEMORY})

# Why there are no more trials.
FINISHED: Final = "finished"
BUDGET: Final = "budget"
RUNNING: Final = "running"

# An interval whose ends are that many times apart says nothing.
TOO_NOISY: Final = 10.0


@dataclass(frozen=True, slots=True)
class Times:
    """How many times as fast as the baseline, with its 95 % interval."""

    low: float | None
    mid: float
    high: float | None


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """All runs of one trial.

    Attributes:
        name: baseline, ceiling, loader_alone, or the overrides: "num_workers=4,pin_memory=True".
        overrides: What was changed; {} for the first three. An argument that several loaders got
            each in its own way has its values by line.
        steps_per_s: Mean of its runs; of loader_alone the steps that its batches would do for.
        speedup: Over the baseline, None where there is none to tell.
        verdict: faster|slower|no_visible_difference|unknown, of `speedup`.
        predicted: Its interval as the model gave it before the trial, None where none applies.
        held: Whether the interval of `speedup` came out inside of it: True all of it, False nothing
            of it; None: neither, so that it tells nothing, or there is no forecast.
        runs: How many there were; `directories` of each, inside the run directory.
        outcome: One of those above; of several runs the worst.
        detail: What is known of it, such as the exception.
        losses: same|other|None: against the baseline's, None: not known, or not the same twice.
        losses_apart: Of other ones, the largest difference as a share of the baseline's; None: of
            losses that are not finite, too.
        refused: What could not be changed, and why.
        against: Why it is not to be taken, however fast its steps were.
        peak_memory_bytes: Of the process tree.
        was_cut: The time of a run was over before its steps were made; those it made count.
        is_least: Its speed-up is the least that free data gives: it is not known how much of what
            copying batches took a device worked through.
        disturbance: By what share other processes may have slowed it.
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
    """The setting to take.

    Attributes:
        sites: The lines that build the loaders that it is about.
        change: In code, one thing per line.
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
        trial_steps: After how many steps trials were stopped; None: they went to the end.
        ended_by: finished|budget|interrupted|running: why there are no more trials.
        unfinished: What would have been tried next.
        uncontained: What trials were seen to do outside: "wrote PATH".
        is_sandboxed: Whether trials were kept from the user's files.
        notes: What else is to be known, as sentences.
        needed_budget_s: The budget that lets one change be tried, where this one had no time for
            any; else None.
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
