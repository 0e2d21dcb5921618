"""What no rule judges: of a step's time, or of a device's, where that is much."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis import slow_rank
from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE
from trainprof.analysis.diagnosis.catalogue import rule_named
from trainprof.analysis.diagnosis.wording import around, place
from trainprof.analysis.finding import SLOWS_EVERYTHING
from trainprof.analysis.hot_lines import hottest
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.torch_cores import cores_for_threads
from trainprof.analysis.verdict_level import MODERATE_SHARE, pair
from trainprof.report.gain_words import times_words
from trainprof.report.units import counted, percent

# Of backward, and of a step: a forward that takes so much does more than a model's does. Of 16
# scripts with nothing to find the longest took 1.6 times its backward.
_ODD_TIMES: Final = 1.75
_FORWARD_MINDED_SHARE: Final = 0.25
# Of a model's parameters: backward has less to do then.
_FROZEN_FROM: Final = 0.1
# Of a step: from here on it is said what could be kept of a frozen model.
_FROZEN_MINDED_SHARE: Final = 0.2
# Of the cores.
_FEW_THREADS_SHARE: Final = 0.5
# Of training: with so much of it at work, what a device computes is what takes the time.
_MOSTLY_AT_WORK: Final = 0.5
# Of the looks at forward: from here on a line is named that they met, alone and with another.
_MOST_OF_FORWARD: Final = 0.5
_MUCH_OF_FORWARD: Final = 0.25
# Of a step: a part that is so much of it is told beside findings that are about others.
_MUCH_OF_A_STEP: Final = 0.25
_COMPUTING: Final = ("forward", "loss", "backward", "recompute")
# Of a step, or of a device's time: forwards that are computed again are told from here on.
_RECOMPUTED_FROM: Final = 0.05
_BETWEEN: Final = ("other",)
_LOADING: Final = ("data_wait", "first_batch", "loader_start")
# What takes longer because of one of these may be any part of a step.
_OF_ALL_PARTS: Final = (*SLOWS_EVERYTHING, slow_rank.ID)
_FORWARD: Final = "forward"
_BACKWARD: Final = "backward"
_PYTHON: Final = "python between"
_WHAT_STAYS: Final = "it may compute each time what stays the same"
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
    whole_s, found = sum(step_s.values()), {one.id for one in summary.findings}
    recomputed = _recomputed(summary).strip()
    if summary.run.is_on_device or whole_s <= 0 or found.intersection(_OF_ALL_PARTS):
        return recomputed
    rules = [rule for rule in map(rule_named, found) if rule is not None]
    keys = {key for rule in rules for key in rule.keys}
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


def odd_forward(summary: RunSummary) -> str:
    """Returns where to look where forward takes far longer than its backward, "" elsewhere."""
    times = _forward_over_backward(summary)
    if times is None:
        return ""
    takes = f"takes {times_words(times)} x as long as backward, where half is usual"
    lines = _lines_of_forward(summary)
    if not lines:
        return f"look at forward, which {takes}; {_WHAT_STAYS}"
    at = "around" if around(lines[0]) else "at"
    share = percent(lines[0].share)
    return f"look {at} {place(lines[0])}, {share} of forward: forward {takes}; {_WHAT_STAYS}"


def not_judged(summary: RunSummary, *, names_forward: bool = True) -> str:
    """Returns what no rule looks into, of a step's time, as sentences to go on with.

    Args:
        summary: Of a run without findings.
        names_forward: Say where most of forward is.
    """
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
        at = (_most_of_forward(summary) if names_forward else "") + _on_few_cores(summary)
        told.append(f"computing itself ({percent(computing)} of a step{at})")
    if between >= MODERATE_SHARE:
        line = hottest(summary.part_lines, "other")
        is_known = line is not None and line.share >= NAMED_FROM_SHARE and not line.is_likely
        at = f", much of it at {line.site}" if line is not None and is_known else ""
        told.append(f"python between ({percent(between)} of a step{at})")
    said = f" Not judged: {', '.join(told)}." if told else ""
    waiting = sum(step_s.get(name, 0.0) for name in _LOADING) / whole_s
    if waiting >= MODERATE_SHARE:
        said += f" Steps wait for data for {percent(waiting)} of their time, and no change of the "
        said += "loader is sure to help: trainprof tune measures what other settings give."
    return said + _recomputed(summary) + _of_what_comes_again(summary, whole_s)


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


def _of_what_comes_again(summary: RunSummary, whole_s: float) -> str:
    """Returns that a frozen model sees the same samples in each pass, where that may be."""
    share = summary.training.forward_without_grad_s / whole_s
    comes_again = any(
        one.role == TRAINING and one.passes > 1 and not one.is_iterable for one in summary.loaders
    )
    if share < _FROZEN_MINDED_SHARE or not comes_again:
        return ""
    return (
        f" Forwards without gradients take {percent(share)} of a step: what a frozen model gives "
        "for the same samples could be kept from the first pass on, if nothing in it is random."
    )


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


def _lines_of_forward(summary: RunSummary) -> list[HotLine]:
    """Returns the line that most of forward is met at, or at others of its function; else two.

    A line that calls for a whole step, as that of a library's loop does, tells nothing of forward.
    """
    of_loop = {one.site for one in summary.part_lines if one.part in ("backward", "optimizer")}
    lines = [
        line for line in summary.part_lines if line.part == "forward" and line.site not in of_loop
    ]
    if lines and lines[0].share >= _MOST_OF_FORWARD:
        return lines[:1]
    much = [line for line in lines[:2] if line.share >= _MUCH_OF_FORWARD]
    return much if sum(line.share for line in much) >= _MOST_OF_FORWARD else []


def _most_of_forward(summary: RunSummary) -> str:
    lines = _lines_of_forward(summary)
    if len(lines) > 1:
        told = (f"{percent(one.share)} around {one.site} ({one.function})" for one in lines)
        return f"; of forward {' and '.join(told)}"
    if not lines:
        return ""
    at = "at" if (lines[0].line_share or 0.0) >= _MOST_OF_FORWARD else "around"
    return f", most of forward {at} {lines[0].site}"


def _on_few_cores(summary: RunSummary) -> str:
    """Says that torch computes with far fewer threads than cores are there, for each rank."""
    threads, ranks = summary.torch_threads, max(len(summary.ranks), 1)
    if threads is None:
        return ""
    cores = cores_for_threads(summary.system.cpu if summary.system else None, threads * ranks)
    if cores is None or threads * ranks > _FEW_THREADS_SHARE * cores:
        return ""
    each = " in each rank" if ranks > 1 else ""
    more = "OMP_NUM_THREADS or torch.set_num_threads gives it more"
    return f"; torch computes with {counted(threads, 'thread')}{each} on {cores:.3g} cores: {more}"


def _forward_over_backward(summary: RunSummary) -> float | None:
    """Returns how many times as long forward takes, where that is odd: Python code, most likely.

    None on a device, whose own times these are not, and where ranks wait in either of them. What
    nothing goes back through does not count: a teacher's, nor does what is frozen in large part.
    """
    training = summary.training
    step_s = training.per_step_s or {}
    forward_s = step_s.get("forward", 0.0) - training.forward_without_grad_s
    backward_s = step_s.get("backward", 0.0)
    is_frozen = training.frozen_share >= _FROZEN_FROM
    if summary.run.is_on_device or summary.ranks or is_frozen or backward_s <= 0:
        return None
    is_much = forward_s >= _FORWARD_MINDED_SHARE * sum(step_s.values())
    times = forward_s / backward_s
    return times if is_much and times >= _ODD_TIMES else None
