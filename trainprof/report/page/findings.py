"""What to change: each finding with its place, the change, and what that would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.finding import IN_NOISE, MAY_LOSE, SYMPTOM, Finding, PassedOver
from trainprof.analysis.summary.levels import LEAST_GAIN, MOST_NOISE
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.untracked import beside_findings, is_judged, not_judged
from trainprof.report.text.gain_words import (
    known_range,
    speedup_in_short,
    speedup_words,
    times_words,
    together_words,
    whole_of,
)
from trainprof.report.text.layout import Page
from trainprof.report.text.units import counted, percent

FINDINGS_SHOWN: Final = 5
_MORE: Final = "--verbose"
_TITLE: Final = "What to change"
# Times as fast: what may give so much is told however long the page gets, as a warning is.
_TOLD_FROM: Final = 1.1
# Of a change: on a short page; --why tells all of them.
_CAUTIONS_SHOWN: Final = 2
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
    hidden_by_noise = _in_noise(summary, page).strip() if page.verbose else ""
    for told in (together_words(summary), beside_findings(summary), hidden_by_noise):
        lines += page.paragraph(told) if told else []
    return lines


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
    speedup = known_range(finding.predicted_speedup)
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
        steps = known_range(finding.predicted_speedup)
        times = "" if steps is None else f" (up to {times_words(steps[1])} x)"
        named.append(f"{finding.id}{at}{times}")
    return f" Too little to show in this run, which is uneven: {', '.join(named)}."


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
    told = "; ".join(filter(None, [finding.advice, speedup_in_short(finding)]))
    change = _labelled("Change", f"{told}.", page)
    return [*_opening(number, finding, page), *change, *_minds(finding, page)]


def _minds(finding: Finding, page: Page) -> list[Text]:
    cautions = finding.cautions
    if not page.verbose and len(cautions) > _CAUTIONS_SHOWN:
        hidden = len(cautions) - _CAUTIONS_SHOWN
        cautions = [*cautions[:_CAUTIONS_SHOWN], f"{hidden} more: --why {finding.id}"]
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
    bar = summary.findings_from
    if bar is None or not is_judged(summary):
        return ""
    told = f"{_TITLE}: no cause was found that would gain over {percent(bar)}"
    if bar > LEAST_GAIN:
        or_more = " or more" if bar / 2 >= MOST_NOISE else ""
        told += f" (the halves of this run differ by {percent(bar / 2)}{or_more}: less would not "
        told += "show)"
    told += f".{_in_noise(summary, page, more)}"
    if page.verbose:
        told += f" Looked for: {', '.join(summary.rules).replace('_', ' ')}."
    return told + not_judged(summary)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
