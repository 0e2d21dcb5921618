"""Findings: what is worth changing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Of the evidence: the speedup of training, most likely, or at most.
LIKELY: Final = "likely_speedup"
# Likewise: the loader that a finding is about.
LOADER_ID: Final = "loader_id"
# Likewise: further optimizers to change, as "class file:line".
OTHER_OPTIMIZERS: Final = "other_optimizers"
# Likewise: the packages that build optimizers from their own arguments, by "file:line".
OPTIMIZER_BUILDERS: Final = "optimizers_built_by"
# Likewise: the number of workers in the model that predicts the gain.
MODELLED_WORKERS: Final = "modelled_workers"
# Likewise: the cost comes once a run, whatever its length.
COMES_ONCE: Final = "comes_once"
# Likewise: seconds that may cause other findings of at most that cost; None: any.
EXPLAINS_S: Final = "kept_s"
# Likewise: the base of `python_share`, in words; without it training.
SHARE_OF: Final = "python_share_of"
# How many times faster: a smaller gain gets no more than a line on a page.
WORTH_LINES_FROM: Final = 1.1
# When a finding recommends timing lines.
ALWAYS: Final = "always"
WITHOUT_CHANGE: Final = "without_change"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The value from which on (or up to which) something counts, and its source."""

    value: float
    source: str
    is_upper: bool = False


@dataclass(frozen=True, slots=True)
class RuleTraits:
    """What all findings of a rule have in common.

    Attributes:
        keys: Ledger keys that show it in a step; [] outside of steps.
        slows_everything: Its cost is unknown, or an upper bound, and affects all other figures.
        of_all_parts: It may make any part of a step slower.
        gain_if: Condition of the gain; "": the whole cost goes.
        lines: always: it recommends timing lines; without_change: if it has no change.
        changes_numbers: `tune` tries its change only with --allow-numerics.
        action: What to do, in a few words: "Load data in worker processes".
    """

    keys: list[str] = field(default_factory=list)
    slows_everything: bool = False
    of_all_parts: bool = False
    gain_if: str = ""
    lines: str = ""
    changes_numbers: bool = False
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """A rule's texts.

    Attributes:
        id: A word.
        thresholds: By name.
        explanation: What it means, how it is measured, when it is wrong, what to do.
        traits: Common to all its findings.
    """

    id: str
    thresholds: Mapping[str, Threshold]
    explanation: str | None
    traits: RuleTraits = field(default_factory=RuleTraits)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that slows training, and what to do about it.

    Attributes:
        id: The rule that found it.
        severity: high|warn|note, by the possible gain.
        title: The measured fact with its cause, one sentence without a full stop.
        evidence: Its numbers by name, with the unit at the end of the name (`_s`, `_share`).
        site: Your file:line to change or read, or None.
        advice: The change, in words or code.
        change: The arguments to change: {"num_workers": 4}.
        recoverable_s: Of the whole run, most likely (at most, where `is_at_most`). Those of several
            findings do not add up.
        predicted_speedup: Of training's steps [low, high] where `of_steps`, else of all training,
            evaluation and checkpoints included.
        run_speedup: Of the whole run [low, high].
        is_at_most: The gain is an upper bound: low is 1.
        cautions: What the change alters or requires.
        also: Further facts.
        thresholds: Of its rule, by name.
        steps: Those that show it best: step (from 0), seconds, part_s of them.
        verify: How to check it.
        is_tried_by_tune: `tune` measures its change.
        low_confidence: Why its gain is doubtful, "" where its interval says all.
        action: What to do, where it differs from its rule's.
        costliest: The line with most of its cost, and its share: "80 % of batch preparation:
            data.py:36 read()"; "" where it is the site, or unknown.
        flag: The script's option for the change, with its new value: "--workers 2".
        traits: Common to all findings of its rule.
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


# Why a finding is not reported.
IN_NOISE: Final = "noise"
LITTLE: Final = "little"
MAY_LOSE: Final = "may_lose"
SYMPTOM: Final = "symptom"
SOME_RANKS: Final = "some_ranks"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A finding that is not reported, with the reason.

    Attributes:
        why: noise: the run's noise hides its gain; little: not worth a change; may_lose: it may be
            slower; symptom: another finding causes it; some_ranks: not every rank has it.
        least_gain: The gain from which on it would be reported, as a share of the pace, or None.
        root: Of a symptom: the finding that causes it.
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
    """Whether its gain is known, and worth no more than a line."""
    times = finding.evidence.get(LIKELY) or max(finding.predicted_speedup or (), default=None)
    return finding.severity == "note" and times is not None and times < WORTH_LINES_FROM


def leads(finding: Finding) -> bool:
    """Whether it comes before all others: its effect on them is unknown."""
    return finding.traits.slows_everything and finding.evidence.get(EXPLAINS_S) != 0.0


def comes_once(finding: Finding) -> bool:
    """Whether its cost comes once a run, whatever its length."""
    return bool(finding.evidence.get(COMES_ONCE))


def is_unsure(finding: Finding) -> bool:
    """Whether a change may be slower."""
    return finding.predicted_speedup is not None and finding.predicted_speedup[0] < 1
