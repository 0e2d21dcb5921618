"""Renders a `tune` run as a page and as Markdown: the best setting, its gain, every trial."""

from __future__ import annotations

import math
import shlex
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import (
    BASELINE,
    BROKEN,
    BUDGET,
    CEILING,
    FASTER,
    INTERRUPTED,
    LOADER_ALONE,
    NO_VISIBLE_DIFFERENCE,
    OK,
    RUNNING,
    SLOWER,
    TOO_NOISY,
    UNKNOWN,
    Times,
    TrialSummary,
    Tuning,
)
from trainprof.report.markdown import escaped, joined, table
from trainprof.report.text.layout import BLANK, Column, Page
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.text.units import byte_count, counted, is_known, seconds, three_digits

_NONE: Final = "-"
VERDICT_WORDS: Final = {
    FASTER: "faster",
    SLOWER: "slower",
    NO_VISIBLE_DIFFERENCE: "noise",
    UNKNOWN: "",
}
_MARKS: Final = {True: "=", False: "!", None: "?"}  # of forecasts, by whether they held
# These change the order or precision of sums, not the samples.
_OF_SUMS: Final = frozenset(
    {
        *("float32_matmul_precision", "autocast", "channels_last", "cudnn_benchmark"),
        *("torch_threads", "fused", "foreach"),
    }
)
_NAMES: Final = {LOADER_ALONE: "loader alone"}
_MOST_LISTED: Final = 5
# A ceiling below this says that loading is not the bottleneck,
_HARDLY: Final = 1.03
# unless its interval reaches beyond this.
_MAY_BE_MORE: Final = 1.2
_DISTURBED: Final = 0.05
_LEAST_UNCLEAR: Final = 1.03
_UNDECIDED: Final = 1.25  # ratio of the ends of an interval
_OTHER_LOSSES: Final = (
    "losses differ from the baseline{}. Expected with random augmentation or sharded streams; "
    "otherwise this setting changed your data."
)
_OTHER_SUMS: Final = (
    "losses differ from the baseline{}: this setting changes the order or precision of sums. "
    "Compare a full training before you keep it."
)
_UNTIL: Final = {
    BUDGET: "before the budget ran out",
    INTERRUPTED: "before you stopped it",
    RUNNING: "so far (still running, or killed)",
}
# The JSON has long texts whole.
REMARK_CELLS: Final = 300
# On a page that is not verbose.
_MOST_ROWS: Final = 9
_MOST_NOTES: Final = 2
_MOST_REMARKS: Final = 5
_DETAILS: Final = frozenset({"Forecasts"})
TITLES: Final = ("runs", "steps/s", "speed", "95 % interval", "predicted", "memory")
_VERBOSETITLES: Final = frozenset({"runs", "predicted"})
# Columns in the order in which a narrow page drops them.
_DROPPED: Final = {"memory": 1, "runs": 2, "steps/s": 3, "predicted": 4}
_STYLES: Final = {FASTER: "green", SLOWER: "red"}


def times(value: float | None) -> str:
    """Returns "2.84x"."""
    return f"{three_digits(value)}x" if is_known(value) else _NONE


def between(low: float | None, high: float | None) -> str:
    """Returns "2.71-2.97x", "over 5.10x" or "too noisy"."""
    if low is None or high is None or not (is_known(low) and is_known(high)):
        return _NONE
    if high > TOO_NOISY * low:
        return f"over {times(low)}" if low >= 1 else "too noisy"
    return f"{three_digits(low)}-{times(high)}"


def name_of(row: TrialSummary) -> str:
    """Returns the name of a trial, "fused" for "fused=True"."""
    return _NAMES.get(row.name, row.name.replace("=True", ""))


def cells(row: TrialSummary) -> tuple[str, ...]:
    """Returns the figures of a trial under `TITLES`."""
    speedup = row.speedup
    interval = None if row.name == BASELINE else speedup
    mark = f" {_MARKS[row.held]}" if _has_checked_forecast(row) else ""
    return (
        str(row.runs),
        _NONE if row.steps_per_s is None else three_digits(row.steps_per_s),
        _NONE if speedup is None else times(speedup.mid),
        _NONE if interval is None else between(interval.low, interval.high),
        _NONE if row.predicted is None else f"{between(*row.predicted)}{mark}",
        _NONE if row.peak_memory_bytes is None else byte_count(row.peak_memory_bytes),
    )


def result_word(row: TrialSummary) -> str:
    """Returns "faster", "slower", "noise", "unclear", "slower (cut)", or how a trial failed."""
    if row.outcome != OK:
        return row.outcome
    word = "" if row.name in (BASELINE, LOADER_ALONE) else VERDICT_WORDS[row.verdict]
    word = "unclear" if word and _is_unclear(row) else word
    return f"{word} (cut)".strip() if row.was_cut else word


def _is_unclear(row: TrialSummary) -> bool:
    """Whether a difference that matters may hide in the noise."""
    speed = row.speedup
    if row.verdict != NO_VISIBLE_DIFFERENCE or not speed or not speed.low or not speed.high:
        return False
    return speed.high > _UNDECIDED * speed.low


def _has_checked_forecast(row: TrialSummary) -> bool:
    """Whether a measurement can confirm the forecast; a lower bound cannot."""
    return row.predicted is not None and row.speedup is not None and not row.is_least


def effort(summary: RunSummary, tuning: Tuning) -> str:
    """Returns "2 settings tried in 80.0 s (budget 10.0 min): 10 runs of up to 1,000 steps"."""
    settings = sum(bool(row.overrides) for row in summary.trials)
    runs, steps = sum(row.runs for row in summary.trials), tuning.trial_steps
    length = "to the script's end" if steps is None else f"of up to {counted(steps, 'step')}"
    return (
        f"{counted(settings, 'setting')} tried in {seconds(tuning.spent_s)} "
        f"(budget {seconds(tuning.budget_s)}): {counted(runs, 'run')} {length}"
    )


def headline(summary: RunSummary) -> str:
    """Returns the result in one sentence."""
    best = summary.recommended
    if best is not None:
        interval = between(best.speedup.low, best.speedup.high)
        return f"{times(best.speedup.mid)} faster with {best.name} ({interval}, measured)."
    refused = _fastest_refused(summary.trials)
    if refused is not None and refused.speedup is not None:
        return f"{times(refused.speedup.mid)} faster with {refused.name}, but not recommended."
    tried = [row for row in summary.trials if row.overrides]
    measured = [row for row in tried if row.outcome == OK and row.speedup is not None]
    unclear = _fastest_unclear(measured)
    if unclear is not None:
        return unclear
    if summary.tuning is not None and summary.tuning.ended_by in _UNTIL:
        until = _UNTIL[summary.tuning.ended_by]
        verb = "was faster" if measured else "could be measured" if tried else "was tried"
        return f"No setting {verb} {until}."
    if not tried:
        return "Nothing to try: no setting is predicted to gain 3 % or more."
    if not measured:
        return f"No setting could be measured ({len(tried)} tried)."
    return f"No setting is visibly faster than the baseline ({len(measured)} measured)."


def _fastest_unclear(rows: list[TrialSummary]) -> str | None:
    """Returns the sentence of the fastest setting whose gain may be noise, None without any."""
    speeds = [
        (row.speedup.mid, row.speedup.high or math.inf, row.name)
        for row in rows
        if row.speedup is not None and _is_unclear(row) and not row.against
    ]
    mid, high, name = max(speeds, default=(1.0, 1.0, ""))
    if mid < _LEAST_UNCLEAR:
        return None
    word = "Probably" if is_probable(mid, high) else "Unclear:"
    return f"{word} {times(mid)} faster with {name}, but the noise is too large to be sure."


def is_probable(mid: float, high: float) -> bool:
    """Whether a speedup is probable (84 %): at least half its interval's width, in logarithms."""
    return mid > 1 and math.log(mid) >= math.log(high / mid) / 2


def _fastest_refused(rows: list[TrialSummary]) -> TrialSummary | None:
    """Returns the fastest setting that is not recommended for another reason than its speed."""
    refused = [row for row in rows if row.against and row.outcome == OK and row.verdict == FASTER]
    speeds = [(row.speedup.mid, row) for row in refused if row.speedup is not None]
    return max(speeds, key=lambda pair: pair[0])[1] if speeds else None


def remarks(summary: RunSummary) -> list[tuple[str, str]]:
    """Returns labels and sentences below the table, the most important first."""
    rows, tuning, best = {row.name: row for row in summary.trials}, summary.tuning, None
    assert tuning is not None
    labelled = [
        ("Not recommended", f"{name_of(row)}: {why}")
        for row in summary.trials
        for why in row.against
    ]
    if summary.recommended is not None:
        best = rows[summary.recommended.name]
        labelled += [("Note", caution) for caution in summary.recommended.cautions]
    losses = None if best is None else _losses(best)
    if losses is not None:
        labelled.insert(0, ("Note", losses))
    if tuning.needed_budget_s is not None:
        needed = f"--budget {tuning.needed_budget_s:.0f}s"
        labelled.append(("Budget", f"a baseline and one setting need about {needed}"))
    ceiling = rows.get(CEILING)
    if ceiling is not None and ceiling.speedup is not None:
        words = _ceiling_words(ceiling, ceiling.speedup, is_on_device=bool(summary.devices))
        labelled.append(("Ceiling", words))
    labelled += [
        ("Failed", _failed_words(row, summary.run.directory))
        for row in summary.trials
        if row.outcome != OK
    ]
    labelled += [
        ("Not applied", f"{name_of(row)}: {what}: {why}")
        for row in summary.trials
        for what, why in row.refused.items()
    ]
    disturbed = sum(row.disturbance >= _DISTURBED for row in summary.trials)
    if disturbed:
        during = f"during {disturbed} of {counted(len(summary.trials), 'trial')}"
        labelled.append(
            ("Note", f"other programs used the CPU {during}. An idle machine narrows the intervals")
        )
    if tuning.uncontained:
        more = len(tuning.uncontained) - _MOST_LISTED
        listed = "; ".join(tuning.uncontained[:_MOST_LISTED])
        listed += f"; and {more} more" if more > 0 else ""
        labelled.append(("Files", f"trials {listed}"))
    labelled += [("Note", note) for note in tuning.notes]
    if tuning.unfinished:
        labelled.append(("Not tried", ", ".join(tuning.unfinished)))
    held = [row.held for row in summary.trials if _has_checked_forecast(row)]
    if held:
        words = (
            f"{held.count(True)} held (=), {held.count(False)} missed (!), "
            f"{held.count(None)} undecided (?): measured interval inside, outside, overlapping"
        )
        labelled.append(("Forecasts", words))
    return labelled


def _losses(row: TrialSummary) -> str | None:
    if row.losses != "other":
        return None
    is_of_sums = set(row.overrides) <= _OF_SUMS
    apart = "" if row.losses_apart is None else f" by up to {100 * row.losses_apart:.2g} %"
    return (_OTHER_SUMS if is_of_sums else _OTHER_LOSSES).format(apart)


def _ceiling_words(row: TrialSummary, speedup: Times, *, is_on_device: bool) -> str:
    is_clear = speedup.high is None or speedup.high <= _MAY_BE_MORE
    replay, gain = "replaying batches from memory", times(speedup.mid)
    if row.verdict == FASTER and row.is_least:
        return f"{replay} is at least {gain} faster; the copies cost time too"
    if row.verdict == FASTER:
        kept = ", except faster copies to the device" if is_on_device else ""
        return f"{replay} is {gain} faster. No loader change can beat that{kept}"
    if speedup.mid < _HARDLY and is_clear and not row.is_least:
        return f"{replay} gains nothing ({gain}): loading is not the bottleneck"
    return f"{replay} gains {gain}, within noise: the cost of loading is unknown"


def _failed_words(row: TrialSummary, directory: str | None) -> str:
    detail = f": {row.detail}" if row.detail else ""
    words = f"{name_of(row)}: {row.outcome}{detail}"
    if row.outcome not in BROKEN or directory is None or len(row.directories) != 1:
        return words
    return f"{words} (output: {directory}/{row.directories[0]}/console)"


def sentence(text: str) -> str:
    """Returns `text` with a full stop."""
    return text if text.endswith(".") else f"{text}."


def _shown(labelled: list[tuple[str, str]], page: Page) -> list[tuple[str, str]]:
    """Returns the remarks of a page: a few, and two notes at most, unless it is verbose."""
    if page.verbose:
        return labelled
    notes = [pair for pair in labelled if pair[0] == "Note"][:_MOST_NOTES]
    kept = [x for x in labelled if x[0] not in _DETAILS and (x[0] != "Note" or x in notes)]
    return kept[:_MOST_REMARKS]


def render_page(summary: RunSummary, page: Page) -> str:
    """Returns a `tune` run as a page of text; verbose: with every trial and remark."""
    summary = with_safe_text(summary)
    tuning, best = summary.tuning, summary.recommended
    assert tuning is not None
    lines = page.paragraph(f"{summary.run.name}: {effort(summary, tuning)}.")
    lines += BLANK
    lines += page.paragraph(headline(summary), style="bold green" if best else "bold")
    for change in best.change if best is not None else ():
        lines += _change(change, page)
    lines += [*BLANK, *_table(summary.trials, page), *BLANK]
    for label, text in _shown(remarks(summary), page):
        lines += page.paragraph(f"{label}: {page.shortened(sentence(text), REMARK_CELLS)}")
    command = next_command(summary)
    return page.written(lines if command is None else [*lines, *page.commands("Next:", [command])])


def _change(change: str, page: Page) -> list[Text]:
    """Returns a change on one line, or its place and its code on lines of their own."""
    if len(change) + 2 <= page.width:
        return page.paragraph(change, indent=2)
    place, _, code = change.partition(": ")
    return [*page.paragraph(page.site(place), indent=2), *page.paragraph(code, indent=4)]


def _table(rows: list[TrialSummary], page: Page) -> list[Text]:
    rows, more = (rows, 0) if page.verbose else _fastest(rows)
    columns = [Column("Setting", [name_of(row) for row in rows], is_number=False, gives_way=True)]
    columns += [
        Column(title, [cells(row)[index] for row in rows], dropped=_DROPPED.get(title, 0))
        for index, title in enumerate(TITLES)
        if page.verbose or title not in _VERBOSETITLES
    ]
    columns.append(Column("", [result_word(row) for row in rows], is_number=False))
    styles = [
        "" if row.name == BASELINE else _STYLES.get(row.verdict, "") if row.outcome == OK else "red"
        for row in rows
    ]
    rest = page.paragraph(f"and {more} more (--verbose)") if more else []
    return [*page.table(columns, styles), *rest]


def _fastest(rows: list[TrialSummary]) -> tuple[list[TrialSummary], int]:
    """Returns the bounds and the fastest settings in their order, and the number left out."""
    speeds = [row.speedup.mid if row.speedup and row.overrides else 0.0 for row in rows]
    by_speed = sorted(range(len(rows)), key=lambda k: (bool(rows[k].overrides), -speeds[k]))
    kept = sorted(by_speed[:_MOST_ROWS])
    return [rows[k] for k in kept], len(rows) - len(kept)


def next_command(summary: RunSummary) -> tuple[str, str] | None:
    """Returns the next command and what it is for."""
    tuning, directory, best = summary.tuning, summary.run.directory, summary.recommended
    assert tuning is not None
    if directory is None:
        return None
    name = shlex.quote(directory)
    if tuning.ended_by in (BUDGET, INTERRUPTED, RUNNING):
        bare = "" if tuning.is_sandboxed else "--unsandboxed "
        again = f"trainprof tune --resume {name} {bare}{shlex.join(summary.run.command)}"
        return again, "continues"
    fastest = BASELINE if best is None else best.name
    row = next((row for row in summary.trials if row.name == fastest), None)
    if row is None:
        return None
    shown = shlex.quote(f"{directory}/{row.directories[0]}")
    return f"trainprof report {shown}", "where its time goes"


def render_markdown(summary: RunSummary) -> str:
    """Returns a `tune` run as GitHub-flavoured Markdown, ended by a newline."""
    summary = with_safe_text(summary)
    tuning, best = summary.tuning, summary.recommended
    assert tuning is not None
    rows = [
        list(map(escaped, (name_of(row), *cells(row), result_word(row)))) for row in summary.trials
    ]
    return joined(
        [
            f"**{escaped(headline(summary))}**",
            "\n".join(f"- {escaped(change)}" for change in (best.change if best else ())),
            escaped(f"{summary.run.name}: {effort(summary, tuning)}."),
            table(("Setting", *TITLES, ""), rows),
            "\n".join(f"- {escaped(f'{k}: {sentence(text)}')}" for k, text in remarks(summary)),
        ]
    )
