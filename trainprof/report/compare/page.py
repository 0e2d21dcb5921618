"""Comparisons on a terminal: the answer first, then what changed, then both sides' figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from trainprof.analysis.statistics.speedup import FASTER, SLOWER
from trainprof.compare.comparison import NOT_JUDGED, PASSED, TRIPPED, Comparison
from trainprof.report.compare.rows import (
    REMARK_CELLS,
    VERDICT_WORDS,
    gate_line,
    headline,
    remarks,
    rows,
    side,
    warning,
)
from trainprof.report.text.layout import Column, Page, written
from trainprof.report.text.safe_text import with_safe_text

_STYLES: Final = {FASTER: "bold green", SLOWER: "bold red"}
_GATE_STYLES: Final = {PASSED: "bold", TRIPPED: "bold red", NOT_JUDGED: "bold yellow"}
_BLANK: Final = (Text(),)


def render(
    comparisons: Sequence[Comparison],
    *,
    width: int,
    color: bool,
    unicode: bool = True,
    verbose: bool = False,
) -> str:
    """Returns one page for each comparison.

    Args:
        comparisons: Each OTHER against BASE.
        width: Cells in a line; no line is wider.
        color: Allow colour codes; without it the text holds no escape at all.
        unicode: False gives ASCII only.
        verbose: Show every figure.
    """
    page = Page(width=width, unicode=unicode, verbose=verbose)
    lines: list[Text] = []
    for comparison in comparisons:
        lines += [*(_BLANK if lines else ()), *_page(_safe(comparison), page)]
    return written(lines, page, color=color)


def _safe(comparison: Comparison) -> Comparison:
    """Makes every string that came from a run safe to print."""
    base, other = (
        [replace(run, summary=with_safe_text(run.summary)) for run in runs]
        for runs in (comparison.base, comparison.other)
    )
    return replace(comparison, base=base, other=other)


def _page(comparison: Comparison, page: Page) -> list[Text]:
    lines = page.labelled("BASE", [side(comparison.base)])
    lines += page.labelled("OTHER", [side(comparison.other)])
    lines += _BLANK
    if (unlike := warning(comparison)) is not None:
        lines += page.paragraph(unlike, style="bold yellow")
    lines += page.paragraph(headline(comparison), style=_STYLES.get(comparison.verdict, "bold"))
    if comparison.gate is not None:
        style = _GATE_STYLES[comparison.gate.outcome]
        lines += page.paragraph(gate_line(comparison.gate), style=style)
    listed = remarks(comparison)
    lines += _BLANK if listed else ()
    for label, sentence in listed:
        lines += page.labelled(label, page.shortened(sentence, REMARK_CELLS).split(", "))
    return [*lines, *_BLANK, *_table(comparison, page)]


def _table(comparison: Comparison, page: Page) -> list[Text]:
    shown = rows(comparison, verbose=page.verbose)
    words = [VERDICT_WORDS[row.verdict] for row in shown]
    lines = page.table(
        [
            Column("", [row.label for row in shown], is_number=False, gives_way=True),
            Column("BASE", [row.base for row in shown]),
            Column("OTHER", [row.other for row in shown]),
            Column("change", [row.change for row in shown]),
            Column("95 % sure", [row.interval for row in shown], dropped=2),
            Column("", words, is_number=False, dropped=1),
        ]
    )
    for line, row, word in zip(lines[1:], shown, words, strict=True):
        if row.verdict in _STYLES and line.plain.endswith(word):
            line.stylize(_STYLES[row.verdict].split()[-1], len(line.plain) - len(word))
    return lines
