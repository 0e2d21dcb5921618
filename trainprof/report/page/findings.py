"""What to change: each finding with its gain in words; what no rule judges; what to run next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.finding import (
    ALWAYS,
    BY_SAMPLES,
    ESTIMATE,
    IN_NOISE,
    LIKELY,
    MAY_LOSE,
    MODELLED_WORKERS,
    SOME_RANKS,
    SYMPTOM,
    WITHOUT_CHANGE,
    Finding,
    PassedOver,
    comes_once,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, MANY_STEPS, MOST_NOISE
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page
from trainprof.report.text.parts import RECOMPUTING, WAITING, Part, without_cause
from trainprof.report.text.units import NOT_MEASURED, counted, percent, seconds

FINDINGS_SHOWN: Final = 5
_MORE: Final = "--verbose"
_TITLE: Final = "What to change"
# Times as fast: what may give so much is shown however long the page gets, as a warning is.
_SHOWN_FROM: Final = 1.1
# Of a change: on a short page; --why tells all of them.
_CAUTIONS_SHOWN: Final = 2
_INDENT: Final = 2
_STYLES: Final = {"high": "bold red", "warn": "bold yellow", "note": "bold"}
# Parts that consist of the user's own code.
_OF_LINES: Final = (WAITING, "forward", "loss", "python between")
# From here on what is at most gained is told beside what is likely.
_APART_TIMES: Final = 1.03
_BY_MODEL: Final = "a model, not measured"
_BY_TUNE: Final = ": trainprof tune does"
_BY_COMPARE: Final = ": trainprof compare of a rerun does"


def findings_section(summary: RunSummary, page: Page, room: int | None = None) -> list[Text]:
    """Returns a block for each finding, or that there is none; nothing where it is unknown.

    `room`: lines that should do. The first finding stands whole in any case, and those worth a
    warning with their change and gain.
    """
    if not summary.findings:
        words = nothing_words(summary, page).removeprefix(_TITLE)
        return page.headed(_TITLE, words, indent=0) if words else []
    shown = summary.findings if page.verbose else summary.findings[:FINDINGS_SHOWN]
    blocks = _blocks(shown, page, whole_of(summary), room)
    lines = [line for block in blocks for line in block]
    hidden = [finding.id for finding in summary.findings[len(blocks) :]]
    if hidden:
        named = page.shortened(", ".join(hidden), page.width)
        sentence = f"{counted(len(hidden), 'more finding')} ({named}): {_MORE}"
        lines += page.paragraph(sentence, indent=_INDENT)
    hidden_by_noise = _in_noise(summary, page).strip() if page.verbose else ""
    for sentence in (together_words(summary), unexplained(summary, page), hidden_by_noise):
        lines += page.paragraph(sentence) if sentence else []
    return lines


def _blocks(shown: Sequence[Finding], page: Page, whole: str, room: int | None) -> list[list[Text]]:
    """Returns the lines of each finding that is told: whole, or in fewer words to save room."""
    blocks = [_block(number, finding, page, whole) for number, finding in enumerate(shown, 1)]
    if room is None:
        return blocks
    brief = [_shorter(number, finding, page) for number, finding in enumerate(shown, 1)]
    chosen = [blocks[0], *brief[1:]]
    kept = max(number for number, x in enumerate(shown, 1) if number == 1 or _is_worth_lines(x))
    used = sum(map(len, chosen[:kept]))
    while kept < len(chosen) and used + len(chosen[kept]) <= room:
        used += len(chosen[kept])
        kept += 1
    # All that are told come before all of one.
    for index in range(1, kept):
        more = len(blocks[index]) - len(chosen[index])
        if used + more <= room:
            chosen[index] = blocks[index]
            used += more
    return chosen[:kept]


def _is_worth_lines(finding: Finding) -> bool:
    speedup = known_range(finding.predicted_speedup)
    return finding.severity != "note" or (speedup is not None and speedup[1] >= _SHOWN_FROM)


def why_passed_over(passed: PassedOver, summary: RunSummary) -> str:
    """Returns why a finding is not reported, for a sentence."""
    if passed.why == SYMPTOM:
        return f"it comes of {passed.root}"
    if passed.why == SOME_RANKS:
        return "not every rank has it"
    if passed.why == MAY_LOSE:
        return "the change may cost more than it gains"
    if passed.why == IN_NOISE and passed.least_gain is not None:
        return (
            f"{_noise_words(passed.least_gain, summary)}, so a gain under "
            f"{percent(passed.least_gain)} may not show; a longer run, a quieter machine or "
            "trainprof tune shows it"
        )
    return f"it would gain less than {percent(LEAST_GAIN)} of training"


def _in_noise(summary: RunSummary, page: Page, more: str = _MORE) -> str:
    """Returns what would gain something by the figures, but too little to show in this run."""
    hidden = [passed.finding for passed in summary.passed_over if passed.why == IN_NOISE]
    if not hidden:
        return ""
    if not page.verbose:
        return f" {counted(len(hidden), 'cause')} would gain less: {more}."
    named = []
    for finding in hidden:
        at = f" at {page.site(finding.site)}" if finding.site else ""
        steps = known_range(finding.predicted_speedup)
        times = "" if steps is None else f" (up to {times_words(steps[1])} x)"
        named.append(f"{finding.id}{at}{times}")
    return f" Too little to show in this run, which is uneven: {', '.join(named)}."


def _block(number: int, finding: Finding, page: Page, whole: str) -> list[Text]:
    lines = _opening(number, finding, page)
    lines += page.headed("Change", f": {finding.advice}")
    gives = speedup_words(finding, whole)
    if gives:
        lines += page.headed("Gives", f": {gives}.")
    for sentence in finding.also:
        lines += page.paragraph(f"{sentence[:1].upper()}{sentence[1:]}.", indent=_INDENT)
    return [*lines, *_minds(finding, page)]


def _shorter(number: int, finding: Finding, page: Page) -> list[Text]:
    doubt = "low confidence" if finding.low_confidence else ""
    words = "; ".join(filter(None, [finding.advice, speedup_in_short(finding), doubt]))
    change = page.headed("Change", f": {words}.")
    return [*_opening(number, finding, page), *change, *_minds(finding, page)]


def _minds(finding: Finding, page: Page) -> list[Text]:
    cautions = finding.cautions
    if not page.verbose and len(cautions) > _CAUTIONS_SHOWN:
        hidden = len(cautions) - _CAUTIONS_SHOWN
        cautions = [*cautions[:_CAUTIONS_SHOWN], f"{hidden} more: --why {finding.id}"]
    return page.headed("Mind", f": {'; '.join(cautions)}.") if cautions else []


def _opening(number: int, finding: Finding, page: Page) -> list[Text]:
    at = f" at {page.site(finding.site)}" if finding.site else ""
    style = _STYLES.get(finding.severity, "bold")
    lines = page.headed(f"{number} {finding.id}", f"{at}: {finding.title}.", style=style)
    return [lines[0][_INDENT:], *lines[1:]]


def nothing_words(summary: RunSummary, page: Page, more: str = _MORE) -> str:
    """Returns what was looked for in vain, and what has no cause; "" where nothing was."""
    bar = summary.findings_from
    if bar is None or not summary.is_judged:
        return ""
    least = f"gains under {percent(bar)} are not reported"
    if bar > LEAST_GAIN:
        # A cause that does not rest on times is reported from a smaller gain on.
        least = f"{_noise_words(bar, summary)}: gains under {percent(bar)} may be missed"
    causes = f"none of the {len(summary.rules)} causes that trainprof looks for was found"
    words = f"{_TITLE}: {causes} ({least}).{_in_noise(summary, page, more)}"
    if page.verbose:
        words += f" Looked for: {', '.join(summary.rules).replace('_', ' ')}."
    return f"{words} {unexplained(summary, page)}".rstrip()


def _noise_words(bar: float, summary: RunSummary) -> str:
    if summary.training.steady_steps < MANY_STEPS:
        return f"this run has {summary.training.steady_steps} steady steps"
    or_more = " or more" if bar / 2 >= MOST_NOISE else ""
    return f"the halves of this run differ by {percent(bar / 2)}{or_more}"


def unexplained(summary: RunSummary, page: Page) -> str:
    """Returns the large parts of a step that no finding is about, "" where there is none."""
    parts = without_cause(summary)
    if not parts:
        return ""
    opening, verb = "No finding explains", ""
    if not summary.findings:
        opening, verb = "That does not mean there is nothing to gain", " takes"
    words, base = [], ""
    for part in parts:
        of = "" if part.of == base else f" of {part.of}"
        words.append(f"{part.name}{verb} {percent(part.share)}{of}{_place_words(part, page)}")
        verb, base = "", part.of
    sentence = f"{opening}: {'; '.join(words)}."
    if any(part.name == WAITING for part in parts):
        sentence += " trainprof tune measures other loader settings."
    return sentence


def _place_words(part: Part, page: Page) -> str:
    words = ""
    if part.name == RECOMPUTING:
        words = " (activation checkpointing, to save memory)"
    elif part.site is not None:
        words = f" ({'loader at ' if part.name == WAITING else ''}{page.site(part.site)})"
    if part.line is None:
        return words
    where = " in its workers" if part.line.thread == "worker" else ""
    most = f"most{where} at" if part.is_most_in_line else f"hottest line{where}"
    return f"{words}, {most} {page.site(part.line.site)}"


def next_commands(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Returns label, opening and command of what the page's advice is followed up by."""
    commands, command = [], shlex.join(summary.run.words_again)
    if not command:
        return []
    if summary.lines is None and _sends_to_lines(summary):
        commands.append(("Lines", "time each line:", f"trainprof lines {command}"))
    tried = [finding.traits for finding in summary.findings if finding.is_tried_by_tune]
    if tried:
        option = "--allow-numerics " if any(x.changes_numbers for x in tried) else ""
        commands.append(("Verify", "measure that:", f"trainprof tune {option}{command}"))
    return commands


def next_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns those commands, each on a line of its own."""
    return [line for command in next_commands(summary) for line in page.command(*command)]


def _sends_to_lines(summary: RunSummary) -> bool:
    if summary.findings:
        return any(
            x.traits.lines == ALWAYS or (x.traits.lines == WITHOUT_CHANGE and not x.change)
            for x in summary.findings
        )
    # Lines are those of the user's code: of what torch does at one of them they say no more.
    parts = without_cause(summary) if summary.is_judged and not summary.run.is_on_device else []
    return any(part.line is not None and part.name in _OF_LINES for part in parts)


def whole_of(summary: RunSummary) -> str:
    """Returns what is shown, as gains are told of it: all of a run, or a part."""
    return "the run" if summary.run.part is None else "this part of it"


def speedup_words(finding: Finding, whole: str = "the run") -> str:
    """Returns the gain of a change, "" where it is not known; `whole`: what of the run is shown."""
    steps, run = known_range(finding.predicted_speedup), known_range(finding.run_speedup)
    if steps is None:
        return ""
    if comes_once(finding):
        return _once(finding)
    doubt = f"; low confidence: {finding.low_confidence}" if finding.low_confidence else ""
    if finding.is_at_most:
        return _at_most(finding, steps[1], None if run is None else run[1], whole) + doubt
    words = f"{_what(finding)} {_range(steps)} as fast"
    likely = _likely(finding)
    if steps[0] < 1 and likely is not None:
        words += f", most likely {times_words(likely)} x"
    if run is not None:
        words += f", {whole} {_range(run)}"
    by_whom = _by_whom(finding) if finding.change else ""
    return f"{words} ({_BY_MODEL}{by_whom}{'; it may as well lose' if steps[0] < 1 else ''}){doubt}"


def speedup_in_short(finding: Finding) -> str:
    """Returns the same in a few words, for a sentence that goes on; "" where it is not known."""
    steps = known_range(finding.predicted_speedup)
    if steps is None:
        return ""
    if comes_once(finding):
        return _once(finding)
    what = _what(finding)
    if not finding.is_at_most:
        return f"{what} {_range(steps)} as fast"
    likely = _likely(finding)
    if likely is None or _is_modelled(finding):
        return f"{what} up to about {times_words(steps[1])} x as fast"
    if finding.traits.gain == ESTIMATE:
        return f"{what} {_likely_words(likely, steps[1])} as fast"
    # Were all of it gone: what gets faster by that has no room here.
    return f"{what} up to {times_words(likely)} x as fast"


def together_words(summary: RunSummary) -> str:
    """Returns what all changes would give at most; "" where it is not known, or one is as good."""
    lasting = (known_range(x.predicted_speedup) for x in summary.findings if not comes_once(x))
    alone = max((steps[1] for steps in lasting if steps), default=0.0)
    times = summary.together
    if times is None or not math.isfinite(times) or times < (1 + LEAST_GAIN) * alone:
        return ""
    return f"All of these together: training up to about {times_words(times)} x as fast."


def known_range(speedup: list[float] | None) -> list[float] | None:
    """Returns how many times as fast, from low to high; None where that is not two numbers."""
    is_known = speedup is not None and len(speedup) == 2 and all(map(math.isfinite, speedup))
    return speedup if is_known else None


def times_words(times: float, other: float = 0.0) -> str:
    """Returns a factor as exactly as anybody can mean it, like the one it stands beside."""
    largest = max(times, other)
    return f"{times:.2f}" if largest < 2 else f"{times:.1f}" if largest < 20 else f"{times:.0f}"


def _at_most(finding: Finding, most: float, run: float | None, whole: str) -> str:
    what, likely = _what(finding), _likely(finding)
    if _is_modelled(finding):
        words = f"{what} up to about {times_words(most)} x as fast"
        words += "" if run is None else f", {whole} {times_words(run)} x"
        by_whom = _by_whom(finding) if "num_workers" in finding.change else ""
        return f"{words} ({_BY_MODEL}{by_whom})"
    is_apart = likely is not None and most >= _APART_TIMES * likely
    is_loose = likely is None or finding.traits.gain in (ESTIMATE, BY_SAMPLES)
    if likely is None or finding.traits.gain == ESTIMATE:
        words = f"{what} {_likely_words(likely, most)} as fast"
    else:
        condition = finding.traits.gain_if or "all of it went"
        words = f"{what} about {times_words(likely, most)} x as fast if {condition}"
    if is_apart:
        rest = "" if is_loose else " (what remains may speed up, too)"
        words += f", up to about {times_words(most)} x{rest}"
    if run is not None:
        words += f"; {whole} {'up to ' if is_apart and is_loose else ''}{times_words(run)} x"
    return f"{words}; {NOT_MEASURED}{_BY_TUNE if finding.is_tried_by_tune else ''}"


def _likely_words(likely: float | None, most: float) -> str:
    """Returns an estimate; where it is what is at most gained, or none is known, as the most."""
    if likely is None or most < _APART_TIMES * likely:
        return f"up to {times_words(most)} x"
    return f"likely {times_words(likely, most)} x"


def _once(finding: Finding) -> str:
    saved_s = finding.recoverable_s
    return "" if saved_s is None else f"up to {seconds(saved_s)}, once a run"


def _by_whom(finding: Finding) -> str:
    """Returns what measures the gain of a change."""
    return _BY_TUNE if finding.is_tried_by_tune else _BY_COMPARE


def _is_modelled(finding: Finding) -> bool:
    return "num_workers" in finding.change or MODELLED_WORKERS in finding.evidence


def _likely(finding: Finding) -> float | None:
    likely = finding.evidence.get(LIKELY)
    if isinstance(likely, (int, float)) and math.isfinite(likely):
        return float(likely)
    return None


def _what(finding: Finding) -> str:
    return "steps" if finding.of_steps else "training"


def _range(speedup: list[float]) -> str:
    low, high = times_words(speedup[0], speedup[1]), times_words(speedup[1])
    return f"{low} x" if low == high else f"{low} to {high} x"
