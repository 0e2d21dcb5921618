"""A `tune` run on a terminal: what to change, what it gives, and every trial."""

from __future__ import annotations

import shlex
from typing import Final

from rich.text import Text

from trainprof.analysis.statistics.speedup import FASTER, SLOWER
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import BASELINE, BUDGET, INTERRUPTED, OK, RUNNING, TrialSummary
from trainprof.report.text.layout import Column, Page, written
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.tune.rows import (
    TITLES,
    cells,
    headline,
    name_of,
    remarks,
    result_word,
    what_was_done,
)

_BLANK: Final = (Text(),)
_REMARK_CELLS: Final = 300
# In which order columns give way on a narrow page.
_DROPPED: Final = {"memory": 1, "runs": 2, "steps/s": 3, "predicted": 4}
_STYLES: Final = {FASTER: "green", SLOWER: "red"}


def render(
    summary: RunSummary, *, width: int, color: bool, unicode: bool = True, verbose: bool = False
) -> str:
    """Returns a `tune` run as a page of text.

    Args:
        summary: With trials.
        width: Cells in a line; no line but a command to copy is wider.
        color: Allow colour codes; without it the text holds no escape at all.
        unicode: False gives ASCII only.
        verbose: Show remarks whole.
    """
    summary = with_safe_text(summary)
    page = Page(width=width, unicode=unicode, verbose=verbose)
    tuning = summary.tuning
    assert tuning is not None
    lines = page.labelled("TUNE", [summary.run.name, *what_was_done(summary, tuning)])
    lines += _BLANK
    best = summary.recommended
    style = "bold green" if best is not None else "bold"
    lines += page.paragraph(headline(summary), style=style)
    for change in best.change if best is not None else ():
        lines += _change(change, page)
    lines += [*_BLANK, *_table(summary.trials, page), *_BLANK]
    for label, sentence in remarks(summary):
        lines += page.labelled(
            label, page.shortened(sentence, _REMARK_CELLS).split(" "), separator=" "
        )
    return written([*lines, *_next(summary, page)], page, color=color)


def _change(change: str, page: Page) -> list[Text]:
    """Returns a change on one line, or the place and the code on lines of their own."""
    if len(change) + 2 <= page.width:
        return page.paragraph(change, indent=2)
    place, _, code = change.partition(": ")
    return [*page.paragraph(page.site(place), indent=2), *page.paragraph(code, indent=4)]


def _table(rows: list[TrialSummary], page: Page) -> list[Text]:
    by_row = [cells(row) for row in rows]
    names = [name_of(row) for row in rows]
    words = [result_word(row) for row in rows]
    columns = [Column("Trial", names, is_number=False, gives_way=True)]
    columns += [
        Column(title, [one[index] for one in by_row], dropped=_DROPPED.get(title, 0))
        for index, title in enumerate(TITLES)
    ]
    columns.append(Column("", words, is_number=False))
    lines = page.table(columns)
    for line, row, word in zip(lines[1:], rows, words, strict=True):
        style = _STYLES.get(row.verdict) if row.outcome == OK else "red"
        if style is not None and word and row.name != BASELINE and line.plain.endswith(word):
            line.stylize(style, len(line.plain) - len(word))
    return lines


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
