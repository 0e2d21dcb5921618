"""Asks every rule, and ranks what is worth a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.summary.finding import (
    EXPLAINS_S,
    SYMPTOM,
    Finding,
    PassedOver,
    is_unsure,
    leads,
)
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.findings.catalogue import RULES
from trainprof.findings.ranking import passed_over_for
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Case
from trainprof.findings.same_line import joined_by_line
from trainprof.findings.tune_support import told_of_tune

# Of what a finding costs: a root that cost so much may be why.
_EXPLAINS_FROM: Final = 0.7
# Of the time that the change saves, by which it is called high or worth a warning (XProf, TraceML).
_HIGH: Final = 0.2
_WARN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is worth changing, most recoverable seconds first, and what else rules found.

    Ahead of all stands what slows everything else; last, what gains nobody knows how much.
    """

    findings: list[Finding]
    passed_over: list[PassedOver]


def diagnose(
    case: Case,
    rules: Iterable[Rule] = RULES,
    *,
    failed: Callable[[str, Exception], None] | None = None,
) -> Diagnosis:
    """Asks rules; nothing is found in less than 20 steady steps.

    Args:
        case: The run.
        rules: To be asked.
        failed: Called with a rule that cannot judge the case, and its error, which then ends the
            others' work no more. None: it is raised.
    """
    if case.summary.training.steady_steps < MIN_STEADY_STEPS:
        return Diagnosis([], [])
    by_id = {rule.id: rule for rule in rules}
    asked = (_asked(rule, case, failed) for rule in by_id.values())
    found = [told for told in asked if told is not None]
    joined = [told_of_tune(one, case) for one in joined_by_line(found, by_id, case)]
    judged = [(one, passed_over_for(one, by_id[one.id], case)) for one in joined]
    passed_over = [why for _, why in judged if why is not None]
    worthwhile = [one for one, why in judged if why is None]
    completed = [_completed(one, by_id[one.id], case) for one in worthwhile]
    told, symptoms = _without_symptoms(completed, by_id)
    return Diagnosis(ranked(told), [*symptoms, *passed_over])


def _asked(
    rule: Rule, case: Case, failed: Callable[[str, Exception], None] | None
) -> Finding | None:
    try:
        found = rule.find(case)
        return found and replace(found, traits=rule.traits)
    except Exception as error:
        if failed is None:
            raise
        failed(rule.id, error)
        return None


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings in the order in which they are told."""
    return sorted(findings, key=_rank)


def _without_symptoms(
    findings: list[Finding], rules: Mapping[str, Rule]
) -> tuple[list[Finding], list[PassedOver]]:
    """Sets apart what comes of another finding, which then says so."""
    there = {finding.id for finding in findings}
    roots = {x: why for x in there for why in rules[x].explained_by if why in there}
    for why in there:
        if rules[why].explains_unsure_workers:
            roots |= {finding.id: why for finding in findings if _may_want_cores(finding)}
    # Who kept training off for less than a finding costs is not why.
    by_id = {one.id: one for one in findings}
    roots = {of: why for of, why in roots.items() if _may_explain(by_id[why], by_id[of])}
    told, symptoms = [], []
    for finding in findings:
        explained = [one.title for one in findings if roots.get(one.id) == finding.id]
        if finding.id not in roots:
            also = [*finding.also, *(f"it may be why {title}" for title in explained)]
            told.append(replace(finding, also=also))
        else:
            symptoms.append(PassedOver(finding, SYMPTOM, root=roots[finding.id]))
    return told, symptoms


def _may_explain(root: Finding, finding: Finding) -> bool:
    """Whether what a root cost, where that is known, is not much less than the finding."""
    kept_s = root.evidence.get(EXPLAINS_S)
    return kept_s is None or kept_s >= _EXPLAINS_FROM * (finding.recoverable_s or 0.0)


def _may_want_cores(finding: Finding) -> bool:
    """Whether more workers may as well cost something: threads without a core make any wait."""
    return bool(finding.change.get("num_workers")) and is_unsure(finding)


def _rank(finding: Finding) -> tuple[bool, float]:
    return not leads(finding), -(finding.recoverable_s or 0.0)


def _completed(finding: Finding, rule: Rule, case: Case) -> Finding:
    saved = (finding.recoverable_s or 0.0) / max(case.settled_s, 1e-9)
    thresholds = {name: rule.threshold(case.settings, name) for name in rule.thresholds}
    severity = "high" if saved >= _HIGH else "warn" if saved >= _WARN else "note"
    if leads(finding):
        severity = finding.severity or "warn"
    steps = case.steps_with_most(rule.traits.keys)
    return replace(finding, severity=severity, thresholds=thresholds, steps=steps)
