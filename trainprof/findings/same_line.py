"""Findings of which one comes of what another one names: the same line of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.findings.gain import of_python, outside_steps
from trainprof.findings.library_loop import LIBRARY_AT
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Case

# Of some Python code, what the lines behind a cause have to be.
_MOST_OF_IT: Final = 0.75


def joined_by_line(
    findings: Iterable[Finding], rules: Mapping[str, Rule], case: Case
) -> list[Finding]:
    """Joins to a finding what else its line is the cause of: its gain is that of both.

    Args:
        findings: In the order of their rules.
        rules: By id.
        case: The run.
    """
    left = list(findings)
    # What is asked last comes of what is asked first, which may come of others in turn.
    for symptom in [one.id for one in reversed(left) if rules[one.id].comes_of]:
        there = next((one for one in left if one.id == symptom and one.site), None)
        root = next((one for one in left if there and _is_root(one, there, rules, case)), None)
        if there is None or root is None:
            continue
        joined = _with_its_symptom(root, there, case)
        left = [joined if one is root else one for one in left if one is not there]
    return left


def _is_root(finding: Finding, symptom: Finding, rules: Mapping[str, Rule], case: Case) -> bool:
    if finding is symptom or finding.id not in rules[symptom.id].comes_of:
        return False
    # All of a step is called at that line, whatever causes what.
    if any(one.evidence.get(LIBRARY_AT) is not None for one in (finding, symptom)):
        return False
    if finding.site == symptom.site:
        return True
    behind = rules[finding.id].lines_behind
    return _is_near(finding, symptom, behind) and _comes_with_saves(symptom, case)


def _is_near(checkpoint: Finding, python: Finding, lines: int) -> bool:
    """Whether most of some Python code is at a line that follows where a checkpoint is written."""
    if not lines or (python.evidence.get("line_share") or 0.0) < _MOST_OF_IT:
        return False
    (file, _, line), (other, _, following) = (
        (one.site or "").rpartition(":") for one in (checkpoint, python)
    )
    if file != other or not (line.isdigit() and following.isdigit()):
        return False
    return 0 <= int(following) - int(line) <= lines


def _comes_with_saves(python: Finding, case: Case) -> bool:
    """Whether most of some Python code is what the steps that save have beyond the others.

    Of a run that saves in each step nobody knows.
    """
    other, saved = (case.steps.per_step.get(key) for key in ("other", "checkpoint"))
    if other is None or saved is None or (saved > 0).all():
        return False
    saves = saved > 0
    usual_ns = np.median(other[~saves])
    with_saves_s = np.maximum(other[saves] - usual_ns, 0).sum() / 1e9 + _behind_last_step_s(case)
    of_line_s = python.evidence["line_share"] * python.evidence["python_s"]
    return bool(with_saves_s >= _MOST_OF_IT * of_line_s)


def _behind_last_step_s(case: Case) -> float:
    """Returns what of the loop's own code stands behind its last step, where that saves."""
    other_s, saved_s = (
        case.training.get(key, 0.0) - float(case.steps.per_step[key].sum()) / 1e9
        for key in ("other", "checkpoint")
    )
    return max(other_s, 0.0) if saved_s > 0 else 0.0


def _with_its_symptom(root: Finding, symptom: Finding, case: Case) -> Finding:
    saved_s = (root.recoverable_s or 0.0) + (symptom.recoverable_s or 0.0)
    of_steps = of_python(case, saved_s) if root.of_steps and symptom.of_steps else None
    gain = of_steps or outside_steps(case, saved_s)
    where = "at the same line" if root.site == symptom.site else f"at {symptom.site}"
    return replace(
        root,
        recoverable_s=gain.saved_s,
        predicted_speedup=list(gain.training),
        run_speedup=list(gain.run),
        is_at_most=True,
        of_steps=gain.of_steps,
        evidence={**root.evidence, LIKELY: gain.likely},
        also=[*root.also, f"{where}, and counted with it: {symptom.title}"],
    )
