"""Comparisons as a pull-request comment: the answer, then one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.analysis.comparison import Comparison
from trainprof.analysis.speedup import NO_VISIBLE_DIFFERENCE
from trainprof.report.comparison_rows import (
    REMARK_CELLS,
    VERDICT_WORDS,
    gate_line,
    headline,
    remarks,
    side,
    tables,
    unfinished,
    unlike,
)
from trainprof.report.markdown import escaped
from trainprof.report.safe_text import clip_end

_WORDS: Final = {**VERDICT_WORDS, NO_VISIBLE_DIFFERENCE: "may be chance"}
_SHORT: Final = ("A steady step", "Where it goes", "Machine")
_TITLES: Final = ("", "BASE", "OTHER", "change", "95 % sure", "")


def render(comparisons: Sequence[Comparison], *, verbose: bool = False) -> str:
    """Returns the comparisons as GitHub-flavoured Markdown, ended by a newline."""
    return "\n\n---\n\n".join(_comment(one, verbose=verbose) for one in comparisons) + "\n"


def _comment(comparison: Comparison, *, verbose: bool) -> str:
    warnings = (unlike(comparison), unfinished(comparison))
    blocks = [
        *(f"**{escaped(found)}**" for found in warnings if found),
        f"**{escaped(headline(comparison))}**",
        "" if comparison.gate is None else f"**{escaped(gate_line(comparison.gate))}**",
        f"BASE {escaped(side(comparison.base))}, OTHER {escaped(side(comparison.other))}",
        "\n".join(
            f"- {escaped(clip_end(f'{label}: {sentence}', REMARK_CELLS))}"
            for label, sentence in remarks(comparison)
        ),
        _table(comparison, verbose=verbose),
    ]
    return "\n\n".join(block for block in blocks if block)


def _table(comparison: Comparison, *, verbose: bool) -> str:
    lines = [_cells(_TITLES), _cells(["---", "---:", "---:", "---:", "---:", "---"])]
    for table in tables(comparison, verbose=verbose):
        if not verbose and table.title not in _SHORT:
            continue
        lines.append(_cells([f"**{escaped(table.title)}**", "", "", "", "", ""]))
        lines += [
            _cells(
                escaped(cell)
                for cell in (
                    row.label,
                    row.base,
                    row.other,
                    row.change,
                    row.interval,
                    _WORDS.get(row.verdict, ""),
                )
            )
            for row in table.rows
        ]
    return "\n".join(lines)


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
