"""What to change: each finding with its gain; what was not found; what to run next."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.finding import (
    ALWAYS,
    IN_NOISE,
    LIKELY,
    MAY_LOSE,
    SOME_RANKS,
    SYMPTOM,
    WITHOUT_CHANGE,
    Finding,
    PassedOver,
    comes_once,
    is_small,
    is_unsure,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, MANY_STEPS, MOST_NOISE, sentence
from trainprof.analysis.summary.run import LOADER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import GAP_CELLS, Page
from trainprof.report.text.parts import PYTHON, Part, without_cause
from trainprof.report.text.units import percent, seconds

_SHOWN: Final = 3
NOTES_SHOWN: Final = 2
_COMMANDS: Final = 2
AS_HTML: Final = "--html"
_INDENT: Final = 5
# Where a run lies unless -o says otherwise: its name is enough there.
_RUNS: Final = "trainprof-runs"
# Of the page: a longer place stands on a line of its own.
_SITE_SHARE: Final = 0.4
_GAIN: Final = "bold green"
_CODE: Final = re.compile(r"[\w.]+\((?:[^()]|\([^()]*\))*\)$|[\w.]+ ?= ?\S+$")
# Parts that consist of the user's own code.
_OF_LINES: Final = ("forward", "loss", PYTHON)
# What is gained at most is worth a number besides what is likely.
_APART_TIMES: Final = 1.03


def findings_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns a block for each finding that gains much, and a line for the others by name."""
    numbered = list(enumerate(summary.findings, 1))
    shown = [(number, x) for number, x in numbered if page.verbose or not is_small(x)]
    shown = shown if page.verbose else shown[:_SHOWN]
    lines = [line for number, x in shown for line in _block(number, x, page, summary)]
    others = [finding for number, finding in numbered if (number, finding) not in shown]
    if others:
        named = [f"{finding.id}{_in_brackets(finding)}" for finding in others]
        label = "Small gains" if all(map(is_small, others)) else "More"
        lines += page.paragraph(f"{label}: {', '.join(named)}. Details: --why NAME")
    if page.verbose:
        for sentence in (together_words(summary), not_found(summary), in_noise(summary, page)):
            lines += page.paragraph(sentence) if sentence else []
    return lines


def action_of(finding: Finding) -> str:
    """Returns what to do, in a few words; of older runs the finding's name."""
    action = finding.action or finding.traits.action or finding.id.replace("_", " ")
    return action[:1].upper() + action[1:]


def is_of_headline(finding: Finding, summary: RunSummary) -> bool:
    """Whether the headline says already what a finding has measured."""
    return sentence(finding.title) in summary.verdict.headline


def _in_brackets(finding: Finding) -> str:
    times = _times(finding)
    return "" if times is None else f" ({times_words(times)}x)"


def _block(number: int, finding: Finding, page: Page, summary: RunSummary) -> list[Text]:
    head = page.text(f"{number}  {action_of(finding)}", "bold")
    lines = page.with_right(head, page.text(gain_words(finding), _GAIN), _INDENT)
    lines += _change(finding, page)
    if finding.costliest:
        costliest = sentence(finding.costliest).removesuffix(".")
        lines += page.paragraph(costliest, indent=_INDENT)
    if finding.flag:
        words = f"Your script has a flag for this: {finding.flag}"
        lines += page.paragraph(words, indent=_INDENT)
    if not is_of_headline(finding, summary):
        lines += page.paragraph(sentence(finding.title), indent=_INDENT)
    notes = [page.paragraph(f"Note: {note(x)}", indent=_INDENT) for x in finding.cautions]
    if not page.verbose:  # the second has to be short
        notes = notes[: 1 + (sum(map(len, notes[:NOTES_SHOWN])) == NOTES_SHOWN)]
    lines += [line for words in notes for line in words]
    if page.verbose:
        expected = speedup_words(finding) or "not estimated"
        lines += page.paragraph(f"Expected: {expected}.", indent=_INDENT)
        for more in finding.also:
            lines += page.paragraph(sentence(more), indent=_INDENT)
        lines += page.paragraph(f"Details: --why {finding.id}", indent=_INDENT)
    return lines


def _change(finding: Finding, page: Page) -> list[Text]:
    """Returns the place and, behind or below it, what to write there."""
    site = page.text(finding.site) if finding.site else None
    indent = _INDENT
    if site is not None and site.cell_len <= page.width * _SITE_SHARE:
        indent += site.cell_len + GAP_CELLS
    lines = page.code(finding.advice, indent) if is_code(finding.advice) else []
    lines = lines or page.paragraph(sentence(finding.advice), indent=indent)
    if site is None:
        return lines
    if indent == _INDENT:
        return [*page.paragraph(site.plain, indent=_INDENT), *lines]
    return [Text.assemble(" " * _INDENT, site, lines[0][_INDENT + site.cell_len :]), *lines[1:]]


def is_code(advice: str) -> bool:
    """Whether advice is an expression to write at its place, rather than a sentence."""
    return _CODE.match(advice) is not None


def note(words: str) -> str:
    """Returns words with a full stop, to stand behind a label."""
    return f"{words}{'' if words.endswith(('.', '?', '!')) else '.'}"


def why_passed_over(passed: PassedOver, summary: RunSummary) -> str:
    """Returns why a finding is not reported, for a sentence."""
    if passed.why == SYMPTOM:
        return f"{passed.root} is the cause"
    if passed.why == SOME_RANKS:
        return "not every rank has it"
    if passed.why == MAY_LOSE:
        return "the change may cost more than it gains"
    if passed.why == IN_NOISE and passed.least_gain is not None:
        return (
            f"{_noise_words(passed.least_gain, summary)}, which hides gains under "
            f"{percent(passed.least_gain)}. Run longer or on a quieter machine, or use "
            "trainprof tune"
        )
    return f"it would gain less than {percent(LEAST_GAIN)} of training"


def in_noise(summary: RunSummary, page: Page) -> str:
    """Returns what would gain something by the figures, but too little to show in this run."""
    hidden = [passed.finding for passed in summary.passed_over if passed.why == IN_NOISE]
    named = []
    for finding in hidden:
        at = f" at {page.site(finding.site)}" if finding.site else ""
        steps = known_range(finding.predicted_speedup)
        times = "" if steps is None else f" (up to {times_words(steps[1])}x)"
        action = action_of(finding)
        named.append(f"{action[:1].lower()}{action[1:]}{at}{times}")
    return f"Hidden by the noise of this run: {', '.join(named)}." if named else ""


def nothing_words(summary: RunSummary) -> str:
    """Returns that no fix was found and from which gain on; "" with one, or without a search."""
    bar = summary.findings_from
    if bar is None or not summary.is_judged:
        return ""
    if any(not is_small(finding) for finding in summary.findings):
        return ""
    if summary.findings:
        return "Only small gains found."
    if bar <= LEAST_GAIN:
        return f"No fix found that would gain over {percent(bar)}."
    noise = _noise_words(bar, summary)
    return f"No fix found. {noise[0].upper()}{noise[1:]}, which hides gains under {percent(bar)}."


def not_found(summary: RunSummary) -> str:
    """Returns the causes that were looked for in vain."""
    if summary.findings_from is None or not summary.is_judged:
        return ""
    known = {x.id for x in summary.findings} | {x.finding.id for x in summary.passed_over}
    missing = [rule for rule in summary.rules if rule not in known]
    return f"Checked and not found: {', '.join(missing)}." if missing else ""


def _noise_words(bar: float, summary: RunSummary) -> str:
    if summary.training.steady_steps < MANY_STEPS:
        return f"this run has {summary.training.steady_steps} steady steps"
    or_more = " or more" if bar / 2 >= MOST_NOISE else ""
    return f"the noise of this run is ±{percent(bar / 2)}{or_more}"


def next_commands(summary: RunSummary) -> list[tuple[str, str]]:
    """Returns the commands that follow up the page, each with what it is for."""
    commands, command = [], shlex.join(summary.run.words_again)
    numbers = [str(number) for number, x in enumerate(summary.findings, 1) if x.is_tried_by_tune]
    if command and numbers:
        tried = (finding.traits for finding in summary.findings if finding.is_tried_by_tune)
        option = "--allow-numerics " if any(x.changes_numbers for x in tried) else ""
        fixes = f"fix{'es' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        commands.append((f"trainprof tune {option}{command}", f"measures {fixes}"))
    elif command and any(part.keys == LOADER_KEYS for part in _unexplained(summary)):
        commands.append((f"trainprof tune {command}", "tries other loader settings"))
    if command and summary.lines is None and _sends_to_lines(summary):
        commands.append((f"trainprof lines {command}", "times each line"))
    if summary.run.directory is not None:
        again = shlex.quote(run_name(summary.run.directory))
        commands.append((f"trainprof report {again} {AS_HTML}", "charts, all details"))
        if summary.lines is not None:
            commands.insert(0, (f"trainprof lines {again}", "the time of each line"))
    return commands[:_COMMANDS]


def run_name(directory: str) -> str:
    """Returns what commands call a run: its name, if it lies where runs do."""
    parent, _, name = directory.rpartition("/")
    return name if parent == _RUNS else directory


def next_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns those commands, each on a line of its own."""
    return page.commands("Next:", next_commands(summary))


def _unexplained(summary: RunSummary) -> list[Part]:
    return without_cause(summary) if summary.is_judged and not summary.run.is_on_device else []


def _sends_to_lines(summary: RunSummary) -> bool:
    if summary.findings:
        return any(
            x.traits.lines == ALWAYS or (x.traits.lines == WITHOUT_CHANGE and not x.change)
            for x in summary.findings
        )
    # Lines are those of the user's code: of what torch does at one of them they say no more.
    return any(
        part.line is not None and (part.name in _OF_LINES or part.keys == LOADER_KEYS)
        for part in _unexplained(summary)
    )


def whole_of(summary: RunSummary) -> str:
    """Returns what is shown, as gains are of it: all of a run, or a part."""
    return "whole run" if summary.run.part is None else "this part"


def gain_words(finding: Finding) -> str:
    """Returns one number and how sure it is: "about 2.0x faster, low confidence"."""
    if comes_once(finding):
        return f"saves {seconds(finding.recoverable_s)} once" if finding.recoverable_s else ""
    times = _times(finding)
    if times is None:
        return ""
    doubt = ", low confidence" if finding.low_confidence else ""
    doubt = ", may be slower" if is_unsure(finding) and not finding.is_at_most else doubt
    if finding.is_at_most:
        return f"up to {times_words(times)}x faster{doubt}"
    return f"about {times_words(times)}x faster{doubt or ', estimate'}"


def _times(finding: Finding) -> float | None:
    """Returns how many times faster steps most likely get; None where that is not known."""
    steps = known_range(finding.predicted_speedup)
    if steps is None or comes_once(finding):
        return None
    likely = _likely(finding)
    if likely is not None:
        return likely
    return steps[1] if finding.is_at_most else math.sqrt(max(steps[0] * steps[1], 0.0))


def speedup_words(finding: Finding, whole: str = "whole run") -> str:
    """Returns the gain with its interval, "" where it is not known."""
    steps, run = known_range(finding.predicted_speedup), known_range(finding.run_speedup)
    if steps is None:
        return ""
    if comes_once(finding):
        return gain_words(finding)
    likely = _likely(finding)
    what = "steps" if finding.of_steps else "training"
    if finding.is_at_most:
        is_apart = likely is not None and steps[1] >= _APART_TIMES * likely
        condition = f" if {finding.traits.gain_if}" if finding.traits.gain_if else ""
        words = f"{what} up to {times_words(likely or steps[1])}x faster{condition}"
        words += f", {times_words(steps[1])}x if the rest shrinks too" if is_apart else ""
        words += "" if run is None else f", {whole} up to {times_words(run[1])}x"
    else:
        words = f"{what} {_range(steps)} faster"
        words += "" if likely is None else f", most likely {times_words(likely)}x"
        words += "" if run is None else f", {whole} {_range(run)}"
    by_whom = "trainprof tune" if finding.is_tried_by_tune else "a rerun with trainprof compare"
    words += ", may be slower" if is_unsure(finding) else ""
    words += f" (estimate; {by_whom} measures it)"
    return words + (f"; low confidence: {finding.low_confidence}" if finding.low_confidence else "")


def together_words(summary: RunSummary) -> str:
    """Returns what all changes gain at most; "" where that is unknown, or no more than one."""
    lasting = (known_range(x.predicted_speedup) for x in summary.findings if not comes_once(x))
    alone = max((steps[1] for steps in lasting if steps), default=0.0)
    times = summary.together
    if times is None or not math.isfinite(times) or times < (1 + LEAST_GAIN) * alone:
        return ""
    return f"All of these together: training up to {times_words(times)}x faster."


def known_range(speedup: list[float] | None) -> list[float] | None:
    """Returns how many times faster, from low to high; None where that is not two numbers."""
    is_known = speedup is not None and len(speedup) == 2 and all(map(math.isfinite, speedup))
    return speedup if is_known else None


def times_words(times: float, other: float = 0.0) -> str:
    """Returns a factor as exactly as it can be meant, like the one it stands next to."""
    largest = max(times, other)
    return f"{times:.2f}" if largest < 2 else f"{times:.1f}" if largest < 20 else f"{times:.0f}"


def _likely(finding: Finding) -> float | None:
    likely = finding.evidence.get(LIKELY)
    if isinstance(likely, (int, float)) and math.isfinite(likely):
        return float(likely)
    return None


def _range(speedup: Sequence[float]) -> str:
    low, high = times_words(speedup[0], speedup[1]), times_words(speedup[1])
    return f"{low}x" if low == high else f"{low} to {high}x"
