"""What is worth changing, as the summary has it."""

from __future__ import annotations

from collections.abc import Mapping
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
# How many times faster: a smaller gain gets no more than a line on a page.
WORTH_LINES_FROM: Final = 1.1
# Kinds of gains, as RuleTraits has them.
ESTIMATE: Final = "estimate"
BY_SAMPLES: Final = "samples"
# When a finding's reader is sent to line times.
ALWAYS: Final = "always"
WITHOUT_CHANGE: Final = "without_change"


@dataclass(frozen=True, slots=True)
class Threshold:
    """From which value on something counts, or up to which, and where that value comes from."""

    value: float
    source: str
    is_upper: bool = False


@dataclass(frozen=True, slots=True)
class RuleTraits:
    """What all findings of a rule have in common.

    Attributes:
        keys: Of the ledger: where in a step it shows, none where it lies outside of steps.
        slows_everything: What it costs is unknown, or known at most, but every other figure of the
            run depends on it.
        of_all_parts: What takes longer because of it may be any part of a step.
        gain: estimate: a part of a cost goes, and what is likely is an estimate; samples: what is
            at most gained has beyond that how little some stack samples tell; else "".
        gain_if: What has to be so for the gain, "": that all of a cost goes.
        lines: always: its reader is sent to line times; without_change: where it names no change.
        changes_numbers: `tune` tries its change with --allow-numerics alone.
        action: What to do, in a few words: "Load data in worker processes".
    """

    keys: list[str] = field(default_factory=list)
    slows_everything: bool = False
    of_all_parts: bool = False
    gain: str = ""
    gain_if: str = ""
    lines: str = ""
    changes_numbers: bool = False
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """What a rule says of itself.

    Attributes:
        id: A word.
        thresholds: By name.
        explanation: What it means, how it is measured, when it is wrong, what to do.
        traits: What all its findings have in common.
    """

    id: str
    thresholds: Mapping[str, Threshold]
    explanation: str | None
    traits: RuleTraits = field(default_factory=RuleTraits)


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
        low_confidence: Why its gain is little sure, "" where it is as sure as its interval.
        action: What to do, where it differs from that of all findings of its rule.
        costliest: The line that most of its cost is at, with its share of that: "80 % of batch
            preparation: data.py:36 read()"; "" where it is the site, or not known.
        flag: The script's option that sets what is to be changed, with its new value, as in
            "--workers 2".
        traits: What all findings of its rule have in common.
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
    low_confidence: str = ""
    action: str = ""
    costliest: str = ""
    flag: str = ""
    traits: RuleTraits = field(default_factory=RuleTraits)


# Why a finding was passed over.
IN_NOISE: Final = "noise"
LITTLE: Final = "little"
MAY_LOSE: Final = "may_lose"
SYMPTOM: Final = "symptom"
SOME_RANKS: Final = "some_ranks"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What a rule found and is not told, with the reason.

    Attributes:
        finding: As the rule found it.
        why: noise: its gain stays under what the run's own noise lets show; little: it would not
            be worth a change; may_lose: it may as well cost something; symptom: it comes of
            another finding; some_ranks: not every rank has it.
        least_gain: From which gain on it would be reported, as a share of the pace; None where that
            is not the reason.
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


def is_small(finding: Finding) -> bool:
    """Whether its gain is worth no more than a line."""
    speedup = finding.predicted_speedup
    is_little = speedup is None or not speedup[-1:] or speedup[-1] < WORTH_LINES_FROM
    return finding.severity == "note" and is_little


def leads(finding: Finding) -> bool:
    """Whether it stands ahead of all others: what it costs them is not known."""
    return finding.traits.slows_everything and finding.evidence.get(EXPLAINS_S) != 0.0


def comes_once(finding: Finding) -> bool:
    """Whether it makes training no faster that goes on for longer than the run."""
    return bool(finding.evidence.get(COMES_ONCE))


def is_unsure(finding: Finding) -> bool:
    """Whether a change may as well lose."""
    return finding.predicted_speedup is not None and finding.predicted_speedup[0] < 1
