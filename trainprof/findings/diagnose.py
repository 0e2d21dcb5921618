"""Evaluates every rule, joins findings of one cause, and ranks those worth a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.summary.finding import (
    EXPLAINS_S,
    LIKELY,
    SYMPTOM,
    Finding,
    PassedOver,
    is_unsure,
    leads,
)
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.findings.catalogue import RULES
from trainprof.findings.gain import noise_bar, outside_steps, passed_over_for, python_gain
from trainprof.findings.library_loop import LIBRARY_AT
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.tune_support import marked_if_tried

# Of a finding's cost: a root that cost this share may be the cause.
_EXPLAINS_FROM: Final = 0.7
# Shares of training that a change saves, for severity high and warn (XProf, TraceML).
_HIGH: Final = 0.2
_WARN: Final = 0.1
# Of Python in the loop: the share that the lines behind a cause need.
_MOST_OF_IT: Final = 0.75


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is worth changing, by recoverable seconds, and what else rules found.

    What slows everything else comes first, what has an unknown gain last.
    """

    findings: list[Finding]
    passed_over: list[PassedOver]


def diagnose(
    context: RunContext,
    rules: Iterable[Rule] = RULES,
    *,
    failed: Callable[[str, Exception], None] | None = None,
) -> Diagnosis:
    """Evaluates rules; with fewer than MIN_STEADY_STEPS nothing is reported.

    Args:
        failed: Called with a rule that fails and its error; None: the error is raised.
    """
    if context.summary.training.steady_steps < MIN_STEADY_STEPS:
        return Diagnosis([], [])
    by_id = {rule.id: rule for rule in rules}
    evaluated = (_evaluated(rule, context, failed) for rule in by_id.values())
    results = [x for x in evaluated if x is not None]
    by_line, joined_with = joined_by_line(results, by_id, context)
    joined = [marked_if_tried(finding, context) for finding in by_line]
    judged = [(finding, passed_over_for(finding, by_id[finding.id], context)) for finding in joined]
    passed_over = [why for _, why in judged if why is not None]
    worthwhile = [finding for finding, why in judged if why is None]
    completed = [_completed(finding, by_id[finding.id], context) for finding in worthwhile]
    reported, symptoms = _without_symptoms(completed, by_id)
    return Diagnosis(ranked(reported), [*symptoms, *joined_with, *passed_over])


def _evaluated(
    rule: Rule, context: RunContext, failed: Callable[[str, Exception], None] | None
) -> Finding | None:
    try:
        finding = rule.find(context)
        return finding and replace(finding, traits=rule.traits)
    except Exception as error:
        if failed is None:
            raise
        failed(rule.id, error)
        return None


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings in the order of the report."""
    return sorted(findings, key=_rank)


def _without_symptoms(
    findings: list[Finding], rules: Mapping[str, Rule]
) -> tuple[list[Finding], list[PassedOver]]:
    """Separates findings that another one causes, which then says so."""
    there = {finding.id for finding in findings}
    roots = {x: why for x in there for why in rules[x].explained_by if why in there}
    for why in there:
        if rules[why].explains_unsure_workers:
            # Threads without a core cause any wait: more workers may be slower.
            unsure = (x for x in findings if x.change.get("num_workers") and is_unsure(x))
            roots |= {finding.id: why for finding in unsure}
    # A root that cost less than a finding is not its cause.
    by_id = {cause.id: cause for cause in findings}
    roots = {of: why for of, why in roots.items() if _may_explain(by_id[why], by_id[of])}
    reported, symptoms = [], []
    for finding in findings:
        effects = [effect for effect in findings if roots.get(effect.id) == finding.id]
        if finding.id not in roots:
            also = [*finding.also, *(f"may also cause {x.id}: {x.title}" for x in effects)]
            reported.append(replace(finding, also=also))
        else:
            symptoms.append(PassedOver(finding, SYMPTOM, root=roots[finding.id]))
    return reported, symptoms


def _may_explain(root: Finding, finding: Finding) -> bool:
    """Whether a root cost about the time of the finding, or an unknown time."""
    lost_s = root.evidence.get(EXPLAINS_S)
    return lost_s is None or lost_s >= _EXPLAINS_FROM * (finding.recoverable_s or 0.0)


def _rank(finding: Finding) -> tuple[bool, float]:
    return not leads(finding), -(finding.recoverable_s or 0.0)


def _completed(finding: Finding, rule: Rule, context: RunContext) -> Finding:
    saved = (finding.recoverable_s or 0.0) / max(context.settled_s, 1e-9)
    thresholds = {name: rule.threshold(context.settings, name) for name in rule.thresholds}
    severity = "high" if saved >= _HIGH else "warn" if saved >= _WARN else "note"
    if leads(finding):
        severity = finding.severity or "warn"
    return replace(
        finding,
        severity=severity,
        thresholds=thresholds,
        steps=context.steps_with_most(rule.traits.keys),
        low_confidence=_low_confidence(finding, rule, context),
    )


def _low_confidence(finding: Finding, rule: Rule, context: RunContext) -> str:
    """Returns why a gain is doubtful, "" where its interval says all."""
    if finding.recoverable_s is None:
        return ""
    if context.summary.taken_by_others:
        return context.summary.taken_by_others
    if float(finding.evidence[LIKELY]) - 1 < noise_bar(finding, rule, context):
        return f"the two halves of the run differ by {percent(context.noise)}"
    return ""


def joined_by_line(
    findings: Iterable[Finding], rules: Mapping[str, Rule], context: RunContext
) -> tuple[list[Finding], list[PassedOver]]:
    """Joins findings to the one whose line causes them, in the order of rules, with both gains.

    Returns what is left, and what was joined.
    """
    left, apart = list(findings), list[PassedOver]()
    # A later rule is caused by an earlier one, which may have a cause itself.
    for symptom in [x.id for x in reversed(left) if rules[x.id].comes_of]:
        there = next((x for x in left if x.id == symptom and x.site), None)
        root = next((x for x in left if there and _is_root(x, there, rules, context)), None)
        if there is None or root is None:
            continue
        joined = _with_its_symptom(root, there, context)
        left = [joined if x is root else x for x in left if x is not there]
        apart.append(PassedOver(there, SYMPTOM, root=root.id))
    return left, apart


def _is_root(
    finding: Finding, symptom: Finding, rules: Mapping[str, Rule], context: RunContext
) -> bool:
    if finding is symptom or finding.id not in rules[symptom.id].comes_of:
        return False
    # All of a step is called at a line that calls a library's loop.
    if any(x.evidence.get(LIBRARY_AT) is not None for x in (finding, symptom)):
        return False
    if finding.site == symptom.site:
        return True
    behind = rules[finding.id].lines_behind
    return _is_near(finding, symptom, behind) and _comes_with_saves(symptom, context)


def _is_near(checkpoint: Finding, python: Finding, lines: int) -> bool:
    """Whether most Python in the loop is at a line shortly after a checkpoint."""
    if not lines or (python.evidence.get("line_share") or 0.0) < _MOST_OF_IT:
        return False
    (file, _, line), (other, _, following) = (
        (x.site or "").rpartition(":") for x in (checkpoint, python)
    )
    if file != other or not (line.isdigit() and following.isdigit()):
        return False
    return 0 <= int(following) - int(line) <= lines


def _comes_with_saves(python: Finding, context: RunContext) -> bool:
    """Whether steps that save contain most of a line's Python time; unknown if all steps save."""
    other, saved = (context.steps.per_step.get(key) for key in ("other", "checkpoint"))
    if other is None or saved is None or (saved > 0).all():
        return False
    saves = saved > 0
    usual_ns = np.median(other[~saves])
    with_saves_s = np.maximum(other[saves] - usual_ns, 0).sum() / 1e9 + _behind_last_step_s(context)
    line_s = python.evidence["line_share"] * python.evidence["python_s"]
    return bool(with_saves_s >= _MOST_OF_IT * line_s)


def _behind_last_step_s(context: RunContext) -> float:
    """Returns the time of the loop's code after its last step, if that saves."""
    other_s, saved_s = (
        context.training.get(key, 0.0) - float(context.steps.per_step[key].sum()) / 1e9
        for key in ("other", "checkpoint")
    )
    return max(other_s, 0.0) if saved_s > 0 else 0.0


def _with_its_symptom(root: Finding, symptom: Finding, context: RunContext) -> Finding:
    saved_s = (root.recoverable_s or 0.0) + (symptom.recoverable_s or 0.0)
    of_steps = python_gain(context, saved_s) if root.of_steps and symptom.of_steps else None
    gain = of_steps or outside_steps(context, saved_s)
    where = "at the same line" if root.site == symptom.site else f"at {symptom.site}"
    return replace(
        root,
        recoverable_s=gain.saved_s,
        predicted_speedup=list(gain.training),
        run_speedup=list(gain.run),
        is_at_most=True,
        of_steps=gain.of_steps,
        evidence={**root.evidence, LIKELY: gain.likely},
        also=[*root.also, f"the gain includes {symptom.id} {where}: {symptom.title}"],
    )
