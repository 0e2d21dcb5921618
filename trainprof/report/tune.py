"""A `tune` run as a page and as Markdown: what to change, what it gives, every trial."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
from trainprof.report.text.units import byte_count, count, counted, is_known, seconds, three_digits

_NONE: Final = "-"
VERDICT_WORDS: Final = {
    FASTER: "faster",
    SLOWER: "slower",
    NO_VISIBLE_DIFFERENCE: "chance",
    UNKNOWN: "",
}
# Of forecasts, by whether they held.
_MARKS: Final = {True: "=", False: "!", None: "?"}
# What changes how numbers are added up, and no sample.
_OF_SUMS: Final = frozenset(
    {
        *("float32_matmul_precision", "autocast", "channels_last", "cudnn_benchmark"),
        *("torch_threads", "fused", "foreach"),
    }
)
_NAMES: Final = {LOADER_ALONE: "loader alone"}
_MOST_LISTED: Final = 5
# A ceiling below this says that loading is not what holds training back.
_HARDLY: Final = 1.03
# Above it an interval does not tell that there is nothing to gain.
_MAY_BE_MORE: Final = 1.2
_DISTURBED: Final = 0.05
_OTHER_LOSSES: Final = (
    "they differ from those of the script as it is{}, as they may where samples are drawn or "
    "changed at random, or workers share out a stream; where neither is so, samples come out "
    "wrong: look before you take it"
)
_OTHER_SUMS: Final = (
    "they differ from those of the script as it is{}, as sums in another order or precision make "
    "them: compare where a whole training ends"
)
_UNTIL: Final = {
    BUDGET: "before the time was over",
    INTERRUPTED: "before it was stopped",
    RUNNING: "so far: it is not over, or was killed",
}
# Somebody's arguments may be long; the JSON has them whole.
REMARK_CELLS: Final = 300
# In which order columns give way on a narrow page.
_DROPPED: Final = {"memory": 1, "runs": 2, "steps/s": 3, "predicted": 4}
_STYLES: Final = {FASTER: "green", SLOWER: "red"}


def times(value: float | None) -> str:
    """Returns "2.84x"."""
    return f"{three_digits(value)}x" if is_known(value) else _NONE


def between(low: float | None, high: float | None) -> str:
    """Returns "2.71-2.97x", or as much as an interval tells that is too wide."""
    if low is None or high is None or not (is_known(low) and is_known(high)):
        return _NONE
    if high > TOO_NOISY * low:
        return f"over {times(low)}" if low >= 1 else "too noisy"
    return f"{three_digits(low)}-{times(high)}"


def name_of(row: TrialSummary) -> str:
    """Returns a trial's name; an argument alone is switched on."""
    return _NAMES.get(row.name, row.name.replace("=True", ""))


def cells(row: TrialSummary) -> tuple[str, ...]:
    """Returns what stands in a row behind the trial's name, as `_TITLES` names it."""
    speedup = row.speedup
    interval = None if row.name == BASELINE else speedup
    mark = f" {_MARKS[row.held]}" if _is_forecast_met(row) else ""
    return (
        str(row.runs),
        _NONE if row.steps_per_s is None else three_digits(row.steps_per_s),
        _NONE if speedup is None else times(speedup.mid),
        _NONE if interval is None else between(interval.low, interval.high),
        _NONE if row.predicted is None else f"{between(*row.predicted)}{mark}",
        _NONE if row.peak_memory_bytes is None else byte_count(row.peak_memory_bytes),
    )


_TITLES: Final = ("runs", "steps/s", "speed", "95 % sure", "predicted", "memory")


def result_word(row: TrialSummary) -> str:
    """Returns "faster", "slower", "chance", "slower (cut)", or how a trial failed."""
    if row.outcome != OK:
        return row.outcome
    word = "" if row.name in (BASELINE, LOADER_ALONE) else VERDICT_WORDS[row.verdict]
    return f"{word} (cut)".strip() if row.was_cut else word


def _is_forecast_met(row: TrialSummary) -> bool:
    """Whether there is something to hold a forecast against; the least that it may be is not."""
    return row.predicted is not None and row.speedup is not None and not row.is_least


def _forecasts_words(rows: Sequence[TrialSummary]) -> list[str]:
    """Says how often forecasts were right, and what the marks in the rows mean."""
    held = [row.held for row in rows if _is_forecast_met(row)]
    words = (
        f"{held.count(True)} right ({_MARKS[True]}: measured wholly inside), "
        f"{held.count(False)} wrong ({_MARKS[False]}: wholly outside), "
        f"{held.count(None)} not told ({_MARKS[None]}: neither)"
    )
    return [words] if held else []


def _what_was_done(summary: RunSummary, tuning: Tuning) -> list[str]:
    runs, steps = sum(row.runs for row in summary.trials), tuning.trial_steps
    length = "to the script's end"
    if steps is not None:
        are_more = any(row.overrides and (row.steps or 0) > steps for row in summary.trials)
        length = f"up to {count(steps)} steps{', quick ones more' if are_more else ''}"
    return [
        f"{counted(runs, 'run')} of {counted(len(summary.trials), 'trial')}",
        f"{seconds(tuning.spent_s)} of {seconds(tuning.budget_s)}",
        f"each {length}",
    ]


def headline(summary: RunSummary) -> str:
    """Returns the result in one sentence."""
    best = summary.recommended
    if best is not None:
        return (
            f"{times(best.speedup.mid)} AS FAST with {best.name}"
            f" ({between(best.speedup.low, best.speedup.high)}, measured)"
        )
    refused = _fastest_refused(summary.trials)
    if refused is not None and refused.speedup is not None:
        return (
            f"NOTHING IS RECOMMENDED: {refused.name} is {times(refused.speedup.mid)} as fast, "
            "but see Against"
        )
    tried = [row for row in summary.trials if row.overrides]
    measured = [row for row in tried if row.outcome == OK and row.speedup is not None]
    if summary.tuning is not None and summary.tuning.ended_by in (BUDGET, INTERRUPTED, RUNNING):
        outcome = "NO CHANGE COULD BE MEASURED" if tried else "NO CHANGE WAS TRIED"
        outcome = "NOTHING FASTER WAS FOUND" if measured else outcome
        return f"{outcome} {_UNTIL[summary.tuning.ended_by]}"
    if not tried:
        return "NOTHING TO TRY: no setting from outside promises 3 % or more"
    if not measured:
        return f"NO CHANGE COULD BE MEASURED, of {len(tried)} tried"
    return f"NOTHING WAS VISIBLY FASTER than the script as it is, of {len(measured)} measured"


def _fastest_refused(rows: Sequence[TrialSummary]) -> TrialSummary | None:
    """Returns the fastest of the settings that something else than their pace speaks against."""
    refused = [row for row in rows if row.against and row.outcome == OK and row.verdict == FASTER]
    speeds = [(row.speedup.mid, row) for row in refused if row.speedup is not None]
    return max(speeds, key=lambda pair: pair[0])[1] if speeds else None


def remarks(summary: RunSummary) -> list[tuple[str, str]]:
    """Returns what the rows mean, as labelled sentences."""
    labelled: list[tuple[str, str]] = []
    rows = {row.name: row for row in summary.trials}
    if summary.recommended is not None:
        labelled += _losses(rows[summary.recommended.name])
        labelled += [("Note", caution) for caution in summary.recommended.cautions]
    labelled += [
        ("Against", f"{name_of(row)}: {why}") for row in summary.trials for why in row.against
    ]
    ceiling = rows.get(CEILING)
    if ceiling is not None and ceiling.speedup is not None:
        words = _ceiling_words(ceiling, ceiling.speedup, is_on_device=bool(summary.devices))
        labelled.append(("Ceiling", words))
    tuning = summary.tuning
    if tuning is None:
        return labelled
    if tuning.needed_budget_s is not None:
        budget = f"--budget {tuning.needed_budget_s:.0f}s"
        labelled.append(("Budget", f"a baseline and one change need about {budget}"))
    labelled += [("Forecasts", sentence) for sentence in _forecasts_words(summary.trials)]
    place = summary.run.directory
    labelled += [
        ("Failed", _failed_words(row, place)) for row in summary.trials if row.outcome != OK
    ]
    labelled += [
        ("Refused", f"{name_of(row)}: {what}: {why}")
        for row in summary.trials
        for what, why in row.refused.items()
    ]
    disturbed = sum(row.disturbance >= _DISTURBED for row in summary.trials)
    if disturbed:
        during = f"during {disturbed} of {counted(len(summary.trials), 'trial')}"
        quiet = "a quiet one gives narrower intervals"
        labelled.append(("Machine", f"other processes kept the CPU busy {during}: {quiet}"))
    labelled += [("Note", note) for note in tuning.notes]
    if tuning.uncontained:
        more = len(tuning.uncontained) - _MOST_LISTED
        listed = "; ".join(tuning.uncontained[:_MOST_LISTED])
        listed += f"; and {more} more" if more > 0 else ""
        labelled.append(("Outside", f"Trials also {listed}"))
    if tuning.unfinished:
        labelled.append(("Not tried", ", ".join(tuning.unfinished)))
    return labelled


def _losses(row: TrialSummary) -> list[tuple[str, str]]:
    if row.losses == "same":
        return [("Losses", "the first ones are those of the script as it is, to about six digits")]
    if row.losses == "other":
        is_of_sums = set(row.overrides) <= _OF_SUMS
        apart = "" if row.losses_apart is None else f" by up to {100 * row.losses_apart:.2g} %"
        return [("Losses", (_OTHER_SUMS if is_of_sums else _OTHER_LOSSES).format(apart))]
    return []


def _ceiling_words(row: TrialSummary, speedup: Times, *, is_on_device: bool) -> str:
    is_clear = speedup.high is None or speedup.high <= _MAY_BE_MORE
    words = f"with batches that cost nothing it is {times(speedup.mid)} as fast"
    if row.verdict == FASTER and row.is_least:
        return (
            f"{words}, at the least: giving copies of batches takes time too, and it is not known "
            "how much of that the device worked through"
        )
    if row.verdict == FASTER:
        words += ": no change of loading can give more"
    elif speedup.mid < _HARDLY and is_clear and not row.is_least:
        words += ": loading does not hold it back"
    else:
        return f"{words}, if not by chance: what loading costs is not known"
    return f"{words}; copies to the device are not counted in it" if is_on_device else words


def _failed_words(row: TrialSummary, directory: str | None) -> str:
    detail = f": {row.detail}" if row.detail else ""
    words = f"{name_of(row)}: {row.outcome}{detail}"
    if row.outcome not in BROKEN or directory is None or len(row.directories) != 1:
        return words
    return f"{words}; what it wrote is in {directory}/{row.directories[0]}/console"


def render_page(summary: RunSummary, page: Page) -> str:
    """Returns a `tune` run as a page of text, as `page.render` does; verbose: remarks whole."""
    summary = with_safe_text(summary)
    tuning, best = summary.tuning, summary.recommended
    assert tuning is not None
    lines = page.labelled("TUNE", [summary.run.name, *_what_was_done(summary, tuning)])
    lines += BLANK
    lines += page.paragraph(headline(summary), style="bold green" if best else "bold")
    for change in best.change if best is not None else ():
        lines += _change(change, page)
    lines += [*BLANK, *_table(summary.trials, page), *BLANK]
    for label, sentence in remarks(summary):
        words = page.shortened(sentence, REMARK_CELLS).split(" ")
        lines += page.labelled(label, words, separator=" ")
    return page.written([*lines, *_next(summary, page)])


def _change(change: str, page: Page) -> list[Text]:
    """Returns a change on one line, or the place and the code on lines of their own."""
    if len(change) + 2 <= page.width:
        return page.paragraph(change, indent=2)
    place, _, code = change.partition(": ")
    return [*page.paragraph(page.site(place), indent=2), *page.paragraph(code, indent=4)]


def _table(rows: list[TrialSummary], page: Page) -> list[Text]:
    columns = [Column("Trial", [name_of(row) for row in rows], is_number=False, gives_way=True)]
    columns += [
        Column(title, [cells(row)[index] for row in rows], dropped=_DROPPED.get(title, 0))
        for index, title in enumerate(_TITLES)
    ]
    columns.append(Column("", [result_word(row) for row in rows], is_number=False))
    styles = [
        "" if row.name == BASELINE else _STYLES.get(row.verdict, "") if row.outcome == OK else "red"
        for row in rows
    ]
    return page.table(columns, styles)


def _next(summary: RunSummary, page: Page) -> list[Text]:
    tuning, directory = summary.tuning, summary.run.directory
    assert tuning is not None
    if directory is None:
        return []
    name = shlex.quote(directory)
    if tuning.ended_by in (BUDGET, INTERRUPTED, RUNNING):
        bare = "" if tuning.is_sandboxed else "--unsandboxed "
        return page.command(
            "Next",
            "go on with:",
            f"trainprof tune --resume {name} {bare}{shlex.join(summary.run.command)}",
        )
    base = next((row for row in summary.trials if row.name == BASELINE), None)
    if base is None:
        return []
    shown = shlex.quote(f"{directory}/{base.directories[0]}")
    return page.command("Next", "where its time goes:", f"trainprof report {shown}")


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
            escaped(f"{summary.run.name}: {', '.join(_what_was_done(summary, tuning))}"),
            table(("Trial", *_TITLES, ""), rows),
            "\n".join(f"- {escaped(f'{label}: {said}')}" for label, said in remarks(summary)),
        ]
    )
