"""Findings of which one comes of what another one names: the same line of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.findings.gain import of_python, outside_steps
from trainprof.findings.library_loop import LIBRARY_AT
from trainprof.findings.loading import worker_restart
from trainprof.findings.loop import gc_pauses, python_in_loop, slow_checkpoints
from trainprof.findings.model import python_in_model
from trainprof.findings.run_context import Case

# Who makes the objects that are collected stands where collecting begins; what a pass begins with
# goes on, as objects that are given up again, when its first batch is there; a checkpoint that is
# written is renamed, or brought to disk, by the lines that follow.
_COMES_OF: Final = {
    gc_pauses.ID: (worker_restart.ID, python_in_loop.ID, python_in_model.ID),
    python_in_loop.ID: (worker_restart.ID, slow_checkpoints.ID),
}
# Lines from a checkpoint to what belongs to it; and what those have to be of the Python code.
_NEAR: Final = 4
_MOST_OF_IT: Final = 0.75


def joined_by_line(findings: Iterable[Finding], case: Case) -> list[Finding]:
    """Joins to a finding what else its line is the cause of: its gain is that of both."""
    left = list(findings)
    for symptom, roots in _COMES_OF.items():
        there = next((one for one in left if one.id == symptom and one.site), None)
        root = next((one for one in left if one.id in roots and _is_at(one, there, case)), None)
        if there is None or root is None:
            continue
        joined = _with_its_symptom(root, there, case)
        left = [joined if one is root else one for one in left if one is not there]
    return left


def _is_at(finding: Finding, other: Finding | None, case: Case) -> bool:
    if other is None or finding is other:
        return False
    # All of a step is called at that line, whatever causes what.
    if any(one.evidence.get(LIBRARY_AT) is not None for one in (finding, other)):
        return False
    if finding.site == other.site:
        return True
    is_near = finding.id == slow_checkpoints.ID and _is_near(finding, other)
    return is_near and _comes_with_saves(other, case)


def _is_near(checkpoint: Finding, python: Finding) -> bool:
    """Whether most of some Python code is at a line that follows where a checkpoint is written."""
    if (python.evidence.get("line_share") or 0.0) < _MOST_OF_IT:
        return False
    (file, _, line), (other, _, following) = (
        (one.site or "").rpartition(":") for one in (checkpoint, python)
    )
    if file != other or not (line.isdigit() and following.isdigit()):
        return False
    return 0 <= int(following) - int(line) <= _NEAR


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
