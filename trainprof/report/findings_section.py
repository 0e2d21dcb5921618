"""What to change: each finding with its place, the change, and what that would give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis import few_threads
from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE
from trainprof.analysis.diagnosis.catalogue import RULES
from trainprof.analysis.finding import (
    COMES_ONCE,
    IN_NOISE,
    LIKELY,
    MAY_LOSE,
    MODELLED_WORKERS,
    SYMPTOM,
    WITHOUT_LINE,
    Finding,
    PassedOver,
)
from trainprof.analysis.hot_lines import hottest
from trainprof.analysis.least_gain import LEAST_GAIN, MOST_NOISE
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.torch_cores import cores_for_threads
from trainprof.analysis.verdict_level import MODERATE_SHARE
from trainprof.report.layout import Page
from trainprof.report.units import counted, percent

FINDINGS_SHOWN: Final = 5
_MORE: Final = "--verbose"
_TITLE: Final = "What to change"
# Times as fast: what may give so much is told however long the page gets, as a warning is.
_TOLD_FROM: Final = 1.1
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
_FOR_WHAT_STAYS: Final = ", for what it computes each time though it stays the same"
_COMPUTING: Final = ("forward", "loss", "backward", "recompute")
_BETWEEN: Final = ("other",)
_LOADING: Final = ("data_wait", "first_batch", "loader_start")
# What has to be so for a gain that is told as the most, where that is not that all of a cost goes.
_AT_BEST: Final = {few_threads.ID: "the cores could share all of it evenly"}
_NOT_MEASURED: Final = "a model, not measured"
_BY_TUNE: Final = ": trainprof tune does"
_BY_COMPARE: Final = ": trainprof compare of a rerun does"
_INDENT: Final = 2
_STYLES: Final = {"high": "bold red", "warn": "bold yellow", "note": "bold"}


def findings_section(summary: RunSummary, page: Page, room: int | None = None) -> list[Text]:
    """Returns a block for each finding, or that there is none; nothing where nobody could tell.

    Args:
        summary: The run.
        page: Where it is written.
        room: Lines that should do. The first finding stands whole in any case, and those worth a
            warning with their change and what it gives.
    """
    if not summary.findings:
        return _nothing(summary, page)
    shown = summary.findings if page.verbose else summary.findings[:FINDINGS_SHOWN]
    blocks = _blocks(shown, page, whole_of(summary), room)
    lines = [line for block in blocks for line in block]
    hidden = [finding.id for finding in summary.findings[len(blocks) :]]
    if hidden:
        named = page.shortened(", ".join(hidden), page.width)
        told = f"{counted(len(hidden), 'more finding')} ({named}): {_MORE}"
        lines += page.paragraph(told, indent=_INDENT)
    together = together_words(summary)
    lines += page.paragraph(together) if together else []
    hidden_by_noise = _in_noise(summary, page).strip() if page.verbose else ""
    return lines + (page.paragraph(hidden_by_noise) if hidden_by_noise else [])


def together_words(summary: RunSummary) -> str:
    """Returns what all changes would give at most, "" where that is not known."""
    if summary.together is None or not math.isfinite(summary.together):
        return ""
    return f"All of these together: training up to about {_two(summary.together)} x as fast."


def _blocks(shown: Sequence[Finding], page: Page, whole: str, room: int | None) -> list[list[Text]]:
    """Returns the lines of each finding that is told: whole, or in fewer words to save room."""
    blocks = [_block(number, finding, page, whole) for number, finding in enumerate(shown, 1)]
    if room is None:
        return blocks
    brief = [_shorter(number, finding, page) for number, finding in enumerate(shown, 1)]
    told = [blocks[0], *brief[1:]]
    kept = max([1, *(number for number, one in enumerate(shown, 1) if _is_worth_lines(one))])
    used = sum(map(len, told[:kept]))
    while kept < len(told) and used + len(told[kept]) <= room:
        used += len(told[kept])
        kept += 1
    # All that are told come before all of one.
    for index in range(1, kept):
        more = len(blocks[index]) - len(told[index])
        if used + more <= room:
            told[index] = blocks[index]
            used += more
    return told[:kept]


def _is_worth_lines(finding: Finding) -> bool:
    """Whether a finding is told however long the page gets."""
    speedup = _known(finding.predicted_speedup)
    is_much = speedup is not None and speedup[1] >= _TOLD_FROM
    return is_much or finding.severity != "note"


def why_passed_over(passed: PassedOver) -> str:
    """Returns why a finding is not told, for a sentence."""
    if passed.why == SYMPTOM:
        return f"it comes of {passed.root}, which is told"
    if passed.why == MAY_LOSE:
        return "the change may cost more than it gains"
    if passed.why == IN_NOISE and passed.least_gain is not None:
        return (
            f"in this run a gain of less than {percent(passed.least_gain)} would not show, for its "
            "halves differ by half of that; a longer run, a quieter machine or trainprof tune tells"
        )
    return f"it would gain less than {percent(LEAST_GAIN)}"


def _in_noise(summary: RunSummary, page: Page, more: str = _MORE) -> str:
    """Returns what would gain something by the figures, but too little to show in this run."""
    told = [one.finding for one in summary.passed_over if one.why == IN_NOISE]
    if not told:
        return ""
    if not page.verbose:
        return f" {counted(len(told), 'cause')} below that: {more}."
    named = []
    for finding in told:
        at = f" at {page.site(finding.site)}" if finding.site else ""
        steps = _known(finding.predicted_speedup)
        times = "" if steps is None else f" (up to {_two(steps[1])} x)"
        named.append(f"{finding.id}{at}{times}")
    return f" Too little to show in this run, which is uneven: {', '.join(named)}."


def whole_of(summary: RunSummary) -> str:
    """Returns what is shown, as gains are told of it: all of a run, or a part."""
    return "the run" if summary.run.part is None else "this part of it"


def speedup_words(finding: Finding, whole: str = "the run") -> str:
    """Returns what the change would give, "" where that is not known.

    Args:
        finding: Of the run.
        whole: What of it is shown.
    """
    steps, run = _known(finding.predicted_speedup), _known(finding.run_speedup)
    if steps is None:
        return ""
    if finding.id in COMES_ONCE:
        times = "" if run is None else f"{whole} up to about {_two(run[1])} x as fast, "
        return f"{times}once, however long it goes on (if all of it could go; not measured)"
    if finding.is_at_most:
        told = f"{_what(finding)} up to about {_two(steps[1])} x as fast"
        if run is not None:
            told += f", {whole} {_two(run[1])} x"
        how = _NOT_MEASURED
        if "num_workers" in finding.change:
            how += _by_whom(finding)
        elif MODELLED_WORKERS not in finding.evidence:
            how = f"if {_AT_BEST.get(finding.id, 'all of it could go')}; not measured"
        return f"{told} ({how})"
    told = f"{_what(finding)} {_range(steps)} as fast"
    likely = finding.evidence.get(LIKELY)
    if steps[0] < 1 and isinstance(likely, float) and math.isfinite(likely):
        told += f", most likely {_two(likely)} x"
    if run is not None:
        told += f", {whole} {_range(run)}"
    note = _NOT_MEASURED
    if finding.change:
        note += _by_whom(finding)
    if steps[0] < 1:
        note += "; it may as well lose"
    return f"{told} ({note})"


def _by_whom(finding: Finding) -> str:
    """Returns what measures the gain of a change."""
    return _BY_TUNE if finding.is_tried_by_tune else _BY_COMPARE


def _what(finding: Finding) -> str:
    what = "steps" if finding.of_steps else "training"
    # The advice names a line as well, with what that would give.
    return f"by the workers alone, {what}" if WITHOUT_LINE in finding.evidence else what


def checked_words() -> str:
    """Returns what is looked for in every run."""
    return ", ".join(rule.id.replace("_", " ") for rule in RULES)


def _known(speedup: list[float] | None) -> list[float] | None:
    is_known = speedup is not None and len(speedup) == 2 and all(map(math.isfinite, speedup))
    return speedup if is_known else None


def _block(number: int, finding: Finding, page: Page, whole: str) -> list[Text]:
    lines = _opening(number, finding, page)
    lines += _labelled("Change", finding.advice, page)
    gives = speedup_words(finding, whole)
    if gives:
        lines += _labelled("Gives", f"{gives}.", page)
    for sentence in finding.also:
        lines += page.paragraph(_sentence(sentence), indent=_INDENT)
    return [*lines, *_minds(finding, page)]


def _shorter(number: int, finding: Finding, page: Page) -> list[Text]:
    """Returns a finding with its change, what that would give and what may break by it."""
    told = finding.advice
    steps = _known(finding.predicted_speedup)
    if steps is not None and finding.id not in COMES_ONCE:
        times = f"up to about {_two(steps[1])} x" if finding.is_at_most else _range(steps)
        told += f"; {_what(finding)} {times} as fast"
    change = _labelled("Change", f"{told}.", page)
    return [*_opening(number, finding, page), *change, *_minds(finding, page)]


def _minds(finding: Finding, page: Page) -> list[Text]:
    cautions = finding.cautions
    return _labelled("Mind", f"{'; '.join(cautions)}.", page) if cautions else []


def _opening(number: int, finding: Finding, page: Page) -> list[Text]:
    at = f" at {page.site(finding.site)}" if finding.site else ""
    name = f"{number} {finding.id}"
    lines = page.paragraph(f"{name}{at}: {finding.title}.", indent=_INDENT)
    if lines:
        lines[0] = lines[0][_INDENT:]
        lines[0].stylize(_STYLES.get(finding.severity, "bold"), 0, len(name))
    return lines


def _labelled(label: str, words: str, page: Page) -> list[Text]:
    lines = page.paragraph(f"{label}: {words}", indent=_INDENT)
    if lines:
        lines[0].stylize("bold", _INDENT, _INDENT + len(label))
    return lines


def _nothing(summary: RunSummary, page: Page) -> list[Text]:
    told = nothing_words(summary, page)
    lines = page.paragraph(told) if told else []
    if lines:
        lines[0].stylize("bold", 0, len(_TITLE))
    return lines


def nothing_words(summary: RunSummary, page: Page, more: str = _MORE) -> str:
    """Returns that no cause was found, and what no rule looks into; "" where nobody could tell.

    Args:
        summary: Of a run without findings.
        page: Where it is written.
        more: How to get what is left out.
    """
    training = summary.training
    bar, is_judged = summary.findings_from, summary.verdict.bottleneck != "unknown"
    if bar is None or training.steady_steps < MIN_STEADY_STEPS or not is_judged:
        return ""
    told = f"{_TITLE}: "
    if bar > LEAST_GAIN:
        or_more = " or more" if bar / 2 >= MOST_NOISE else ""
        told += (
            f"nothing that would show. The halves of this run differ by {percent(bar / 2)}"
            f"{or_more}, and "
        )
        told += "no cause was found that would gain over twice that."
    else:
        told += f"no cause was found that would gain over {percent(bar)} of training."
    told += _in_noise(summary, page, more)
    if page.verbose:
        told += f" Looked for: {checked_words()}."
    told += _not_judged(summary)
    longer = _forward_over_backward(summary)
    if longer is not None:
        told += f" But forward takes {_two(longer)} x as long as backward, where half is usual"
        lines = _lines_of_forward(summary)
        told += f": look at {lines[0].site}{_FOR_WHAT_STAYS}." if lines else "."
    return told


def _not_judged(summary: RunSummary) -> str:
    """Returns what no rule looks into, of a step's time."""
    step_s = summary.training.per_step_s or {}
    whole_s = sum(step_s.values())
    if summary.run.is_on_device:
        return _not_judged_of_device(summary)
    if whole_s <= 0:
        return ""
    computing, between = (
        sum(step_s.get(name, 0.0) for name in names) / whole_s for names in (_COMPUTING, _BETWEEN)
    )
    # What a loss without a module takes is computing, too.
    loss = min((summary.loss_in_loop_s or 0.0) / max(summary.training.steps, 1) / whole_s, between)
    computing, between = computing + loss, between - loss
    told = []
    if computing >= MODERATE_SHARE:
        at = _most_of_forward(summary) + _on_few_cores(summary)
        told.append(f"computing itself ({percent(computing)} of a step{at})")
    if between >= MODERATE_SHARE:
        line = hottest(summary.hot_lines, "other")
        is_known = line is not None and line.share >= NAMED_FROM_SHARE and not line.is_likely
        at = f", much of it at {line.site}" if line is not None and is_known else ""
        told.append(f"python between ({percent(between)} of a step{at})")
    said = f" Not judged: {', '.join(told)}: see trainprof lines." if told else ""
    waiting = sum(step_s.get(name, 0.0) for name in _LOADING) / whole_s
    if waiting >= MODERATE_SHARE:
        said += f" Steps wait for data for {percent(waiting)} of their time, and no change of the "
        said += "loader is sure to help: trainprof tune measures what other settings give."
    return said + _of_what_comes_again(summary, whole_s)


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
    """Returns the line that most of forward is met at, or at others of its function; else two."""
    lines = [
        line
        for line in summary.hot_lines
        if line.part == "forward" and not line.is_likely and not line.is_end
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


def _two(factor: float, beside: float = 0.0) -> str:
    """Returns a factor as exactly as anybody can mean it, like the one it stands beside."""
    largest = max(factor, beside)
    return f"{factor:.2f}" if largest < 2 else f"{factor:.1f}" if largest < 20 else f"{factor:.0f}"


def _range(speedup: list[float]) -> str:
    low, high = _two(speedup[0], speedup[1]), _two(speedup[1])
    return f"{low} x" if low == high else f"{low} to {high} x"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
