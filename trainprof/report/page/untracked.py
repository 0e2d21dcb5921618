"""What no rule judges: of a step's time, or of a device's, where that is much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainprof.analysis.summary.finding import RuleTraits
from trainprof.analysis.summary.levels import MODERATE_SHARE, pair
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.report.text.units import percent

# Of training: with so much of it at work, what a device computes is what takes the time.
_MOSTLY_AT_WORK: Final = 0.5
# Of a step: a part that is so much of it is told beside findings that are about others.
_MUCH_OF_A_STEP: Final = 0.25
_COMPUTING: Final = ("forward", "loss", "backward", "recompute")
# Of a step, or of a device's time: forwards that are computed again are told from here on.
_RECOMPUTED_FROM: Final = 0.05
_BETWEEN: Final = ("other",)
_LOADING: Final = ("data_wait", "first_batch", "loader_start")
_FORWARD: Final = "forward"
_BACKWARD: Final = "backward"
_PYTHON: Final = "python between"
_PARTS: Final = {
    _FORWARD: ("forward", "loss"),
    _BACKWARD: ("backward", "recompute"),
    "optimizer": ("optimizer", "zero_grad"),
    _PYTHON: _BETWEEN,
}


def is_judged(summary: RunSummary) -> bool:
    """Whether anybody could tell what is worth changing."""
    is_known = summary.findings_from is not None and summary.verdict.bottleneck != "unknown"
    return is_known and summary.training.steady_steps >= MIN_STEADY_STEPS


def beside_findings(summary: RunSummary) -> str:
    """Returns the large parts of a step that no finding is about, "" where there is none.

    Not on a device, of which the host's times say little. Loading is left to its own rules.
    """
    step_s = summary.training.per_step_s or {}
    whole_s, traits = sum(step_s.values()), [finding.traits for finding in summary.findings]
    recomputed = _recomputed(summary).strip()
    if summary.run.is_on_device or whole_s <= 0 or _may_be_any_part(traits):
        return recomputed
    keys = {key for one in traits for key in one.keys}
    left = {
        name: sum(step_s.get(key, 0.0) for key in of)
        for name, of in _PARTS.items()
        if not keys.intersection(of)
    }
    if _PYTHON in left:  # a loss without a module is computing
        left[_PYTHON] -= min(_loss_s(summary), left[_PYTHON])
    if _FORWARD in left and _BACKWARD in left:
        both_s = left.pop(_FORWARD) + left.pop(_BACKWARD)
        left = {f"{_FORWARD} and {_BACKWARD}": both_s, **left}
    told = [
        f"{name}, {pair(part_s, whole_s)} a step ({percent(part_s / whole_s)})"
        for name, part_s in left.items()
        if part_s >= _MUCH_OF_A_STEP * whole_s
    ]
    return f"Not judged: {'; '.join(told)}. {recomputed}".rstrip() if told else recomputed


def _may_be_any_part(traits: Iterable[RuleTraits]) -> bool:
    """Whether what takes longer because of a finding may be any part of a step."""
    return any(one.slows_everything or one.of_all_parts for one in traits)


def not_judged(summary: RunSummary) -> str:
    """Returns what no rule looks into, of the step of a run without findings, as sentences."""
    step_s = summary.training.per_step_s or {}
    whole_s = sum(step_s.values())
    if summary.run.is_on_device:
        return _not_judged_of_device(summary) + _recomputed(summary)
    if whole_s <= 0:
        return ""
    computing, between = (
        sum(step_s.get(name, 0.0) for name in names) / whole_s for names in (_COMPUTING, _BETWEEN)
    )
    # What a loss without a module takes is computing, too.
    loss = min(_loss_s(summary) / whole_s, between)
    computing, between = computing + loss, between - loss
    told = []
    if computing >= MODERATE_SHARE:
        told.append(f"computing itself ({percent(computing)} of a step)")
    if between >= MODERATE_SHARE:
        told.append(f"python between ({percent(between)} of a step)")
    said = f" Not judged: {', '.join(told)}." if told else ""
    waiting = sum(step_s.get(name, 0.0) for name in _LOADING) / whole_s
    if waiting >= MODERATE_SHARE:
        said += f" Steps wait for data for {percent(waiting)} of their time, and no change of the "
        said += "loader is sure to help: trainprof tune measures what other settings give."
    return said + _recomputed(summary)


def _recomputed(summary: RunSummary) -> str:
    """Returns what forwards that backward computes again take, to save memory, where it is much."""
    of_device = summary.devices[0].seconds if summary.run.is_on_device and summary.devices else None
    spent = of_device or summary.training.per_step_s or {}
    share = spent.get("recompute", 0.0) / (sum(spent.values()) or 1.0)
    if share < _RECOMPUTED_FROM:
        return ""
    return (
        f" Not judged: forwards computed again in backward, {percent(share)} of a step: activation "
        "checkpointing, which saves memory."
    )


def _loss_s(summary: RunSummary) -> float:
    """Returns what a loss without a module takes of a step."""
    return (summary.loss_in_loop_s or 0.0) / max(summary.training.steps, 1)


def _not_judged_of_device(summary: RunSummary) -> str:
    """Returns what a device computes, where that is most of training, and in what."""
    busy = summary.device_busy_share
    if busy is None or busy < _MOSTLY_AT_WORK:
        return ""
    told = (
        f" Not judged: what the device computes (at work in at least {percent(busy)} of "
        f"{summary.time_of_devices})."
    )
    numerics = summary.numerics
    if numerics is not None and numerics.parameters == "float32":
        ways = "torch.autocast, where the script has none,"
        if numerics.products == "highest":
            ways += " and torch.set_float32_matmul_precision('high')"
        told += f" Parameters are float32: {ways} may make it much faster, and change the numbers"
        if numerics.products == "highest":
            told += "; trainprof tune --allow-numerics measures the second"
        told += "."
    return told
