"""The gain of all changes together: single gains do not add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.pipeline.bounds import predict
from trainprof.analysis.summary.finding import LOADER_ID, Finding, comes_once
from trainprof.findings.catalogue import rule_named
from trainprof.findings.device.exposed_syncs import AFTER_S
from trainprof.findings.gain import times_without
from trainprof.findings.run_context import Feeder, RunContext

_OUTSIDE_STEPS: Final = ("evaluation", "checkpoint")
_MOST_REMOVED: Final = 0.99


def together(context: RunContext, findings: Sequence[Finding]) -> float | None:
    """Returns the speedup of training with all changes, at most.

    The costliest loader is simulated with its new workers and the shorter steps. Costs that come
    once a run are left out. None for a single finding, for one of unknown gain, and where epochs
    would have fewer steps.
    """
    findings = [finding for finding in findings if not comes_once(finding)]
    if len(findings) < 2 or any(finding.recoverable_s is None for finding in findings):
        return None
    rules = {
        finding.id: rule for finding in findings if (rule := rule_named(finding.id)) is not None
    }
    if any(rule.changes_steps for rule in rules.values()):
        return None
    included = {rule.includes for rule in rules.values()}
    findings = [finding for finding in findings if finding.id not in included]
    in_steps = [finding for finding in findings if rules[finding.id].saves_in_steps]
    in_steps_s = sum(step.recoverable_s or 0.0 for step in in_steps)
    feeder = context.feeding[0] if context.feeding else None
    loader_findings = [x for x in findings if feeder is not None and _is_about_steps_of(x, feeder)]
    inside = {id(finding) for finding in (*in_steps, *loader_findings)}
    outside = [finding for finding in findings if id(finding) not in inside]
    in_evaluation_s = sum(x.recoverable_s or 0.0 for x in outside if _is_of_evaluation(x, context))
    training_findings = [x for x in outside if not _is_of_evaluation(x, context)]
    outside_s = sum(x.recoverable_s or 0.0 for x in training_findings)
    # Evaluation as a whole includes the start of its workers.
    outside_s += min(in_evaluation_s, context.training.get("evaluation", 0.0))
    outside_s -= _idle_twice_s(outside, in_steps_s)
    saved_s = in_steps_s + sum(x.recoverable_s or 0.0 for x in loader_findings)
    if feeder is not None and loader_findings and not context.is_on_device:
        replayed_s = _replayed_s(feeder, in_steps_s)
        saved_s = saved_s if replayed_s is None else replayed_s
    whole_s = context.settled_s
    left_s = max(whole_s - _parts_s(context, findings), (1 - _MOST_REMOVED) * whole_s)
    kept_s = max(whole_s - outside_s - saved_s, left_s)
    if kept_s <= 0:
        return None
    # One change alone may save more than its cost: the rest gets faster, too.
    alone = [_of_all_training(context, finding) for finding in findings]
    return max([min(whole_s / kept_s, _most_of_workers(context, loader_findings)), *alone])


def _parts_s(context: RunContext, findings: Sequence[Finding]) -> float:
    """Returns what findings save at most: their parts of training, and what each saves beyond.

    Without workers, for example, other parts may be shorter as well.
    """
    all_keys, beyond_s = set[str](), 0.0
    for finding in findings:
        rule = rule_named(finding.id)
        keys = set() if rule is None else set(rule.traits.keys)
        own_s = sum(context.training.get(key, 0.0) for key in keys)
        beyond_s += max((finding.recoverable_s or 0.0) - own_s, 0.0)
        all_keys |= keys
    return sum(context.training.get(key, 0.0) for key in all_keys) + beyond_s


def _idle_twice_s(outside: Sequence[Finding], in_steps_s: float) -> float:
    """Returns the idle time after syncs that other findings count as well.

    Args:
        outside: Findings that save nothing in steps or in a loader's steps.
        in_steps_s: Saved in steps.
    """
    after_s = sum(x.evidence.get(AFTER_S) or 0.0 for x in outside)
    idling = [x for x in outside if (rule := rule_named(x.id)) and rule.idles_device]
    others_s = sum(x.recoverable_s or 0.0 for x in idling)
    return min(after_s, others_s + in_steps_s)


def _most_of_workers(context: RunContext, loader_findings: Sequence[Finding]) -> float:
    """Returns the speedup that the advised workers can sustain on a GPU, at most.

    Without a GPU the simulated loader limits it.
    """
    feeder = context.feeding[0] if context.feeding else None
    advised = [x.change["num_workers"] for x in loader_findings if x.change.get("num_workers")]
    if not context.is_on_device or not advised or feeder is None or feeder.inputs is None:
        return math.inf
    measured, preparing_s = feeder.measured, float(feeder.inputs.fetch_s.mean())
    if measured is None or preparing_s <= 0:
        return math.inf
    return max(measured.step_s * max(map(float, advised)) / preparing_s, 1.0)


def _of_all_training(context: RunContext, finding: Finding) -> float:
    """Returns the speedup of all training after one change, at most."""
    if finding.predicted_speedup is None:
        return 1.0
    most = finding.predicted_speedup[1]
    if not finding.of_steps or context.training_s <= 0:
        return most
    outside_s = sum(context.training.get(name, 0.0) for name in _OUTSIDE_STEPS)
    return times_without((1 - outside_s / context.training_s) * (1 - 1 / most))


def _is_of_evaluation(finding: Finding, context: RunContext) -> bool:
    evaluating = {feeder.loader.id for feeder in context.evaluating}
    rule = rule_named(finding.id)
    is_evaluating = rule is not None and rule.of_evaluation
    return is_evaluating or finding.evidence.get(LOADER_ID) in evaluating


def _is_about_steps_of(finding: Finding, feeder: Feeder) -> bool:
    return (
        feeder.cause is not None
        and finding.evidence.get("wait_per_batch_s") is not None
        and finding.evidence.get(LOADER_ID) == feeder.loader.id
        and any(name in finding.change for name in ("num_workers", "prefetch_factor"))
    )


def _replayed_s(feeder: Feeder, in_steps_s: float) -> float | None:
    """Returns what training saves with the loader's new setting and shorter steps, at most."""
    if feeder.inputs is None or feeder.measured is None or feeder.cause is None:
        return None
    if feeder.cause.setting is None:
        return None
    batches, mean_s = max(feeder.loader.iterations, 1), float(feeder.inputs.compute_s.mean())
    own_s = in_steps_s * feeder.steps_share
    kept = max(1 - own_s / batches / mean_s, 1 - _MOST_REMOVED) if mean_s > 0 else 1.0
    shorter = replace(feeder.inputs, compute_s=feeder.inputs.compute_s * kept)
    best_s = predict(shorter, feeder.cause.setting).step_s.low
    return in_steps_s - own_s + batches * max(feeder.measured.step_s - best_s, 0.0)
