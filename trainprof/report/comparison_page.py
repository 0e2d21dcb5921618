"""Comparisons on a terminal: the answer first, then what changed, then both sides' figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from trainprof.analysis.comparison import Comparison
from trainprof.analysis.gate import NOT_JUDGED, PASSED, TRIPPED
from trainprof.analysis.speedup import FASTER, SLOWER
from trainprof.report.comparison_rows import (
    REMARK_CELLS,
    VERDICT_WORDS,
    Table,
    gate_line,
    headline,
    remarks,
    side,
    tables,
    unfinished,
    unlike,
)
from trainprof.report.layout import Column, Page, written
from trainprof.report.safe_text import clip_start, one_line, with_safe_text

_STYLES: Final = {FASTER: "bold green", SLOWER: "bold red"}
_GATE_STYLES: Final = {PASSED: "bold", TRIPPED: "bold red", NOT_JUDGED: "bold yellow"}
_BLANK: Final = (Text(),)
_NARROW: Final = 56
_LABEL_CELLS: Final = 25
_NARROW_LABEL_CELLS: Final = 12
_VALUE_CELLS: Final = 8
_CHANGE_CELLS: Final = 7
_INTERVAL_CELLS: Final = 16
_VERDICT_CELLS: Final = max(map(len, VERDICT_WORDS.values()))


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
    sides = [
        [replace(run, summary=with_safe_text(run.summary)) for run in runs]
        for runs in (comparison.base, comparison.other)
    ]
    return replace(comparison, base=sides[0], other=sides[1])


def _page(comparison: Comparison, page: Page) -> list[Text]:
    lines = page.labelled("BASE", [side(comparison.base)])
    lines += page.labelled("OTHER", [side(comparison.other)])
    lines += _BLANK
    for found in (unlike(comparison), unfinished(comparison)):
        if found is not None:
            lines += page.paragraph(found, style="bold yellow")
    style = _STYLES.get(comparison.verdict, "bold")
    lines += page.paragraph(headline(comparison), style=style)
    if comparison.gate is not None:
        style = _GATE_STYLES[comparison.gate.outcome]
        lines += page.paragraph(gate_line(comparison.gate), style=style)
    lines += _BLANK
    for label, sentence in remarks(comparison):
        lines += page.labelled(label, page.shortened(sentence, REMARK_CELLS).split(", "))
    for table in tables(comparison, verbose=page.verbose):
        lines += [*_BLANK, *_table(table, page)]
    return lines


def _table(table: Table, page: Page) -> list[Text]:
    """All tables of a page have columns of the same widths, so that one reads down."""
    rows = table.rows
    words = [VERDICT_WORDS.get(row.verdict, "") for row in rows]
    is_narrow = page.width < _NARROW
    label_cells = _NARROW_LABEL_CELLS if is_narrow else _LABEL_CELLS
    value_cells = 0 if is_narrow else _VALUE_CELLS
    title = clip_start(one_line(table.title, unicode=page.unicode), label_cells)
    columns = [
        Column(
            title.ljust(label_cells),
            [f"  {row.label}" for row in rows],
            is_number=False,
            gives_way=True,
        ),
        Column("BASE".rjust(value_cells), [row.base for row in rows]),
        Column("OTHER".rjust(value_cells), [row.other for row in rows]),
        Column("change".rjust(_CHANGE_CELLS), [row.change for row in rows]),
        Column("95 % sure".rjust(_INTERVAL_CELLS), [row.interval for row in rows], dropped=2),
        Column(" " * _VERDICT_CELLS, words, is_number=False, dropped=1),
    ]
    lines = page.table(columns)
    for line, row in zip(lines[1:], rows, strict=True):
        word = VERDICT_WORDS.get(row.verdict, "")
        if row.verdict in _STYLES and line.plain.endswith(word):
            line.stylize(_STYLES[row.verdict].split()[-1], len(line.plain) - len(word))
    return lines
