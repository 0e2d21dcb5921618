"""Comparisons as a pull-request comment: the answer, then one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.compare.comparison import Comparison
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
from trainprof.report.markdown import escaped
from trainprof.report.text.safe_text import clip_end

_TITLES: Final = ("", "BASE", "OTHER", "change", "95 % sure", "")


def render(comparisons: Sequence[Comparison], *, verbose: bool = False) -> str:
    """Returns the comparisons as GitHub-flavoured Markdown, ended by a newline."""
    return "\n\n---\n\n".join(_comment(x, verbose=verbose) for x in comparisons) + "\n"


def _comment(comparison: Comparison, *, verbose: bool) -> str:
    gate = None if comparison.gate is None else gate_line(comparison.gate)
    sentences = (warning(comparison), headline(comparison), gate)
    blocks = [
        *(f"**{escaped(sentence)}**" for sentence in sentences if sentence),
        f"BASE {escaped(side(comparison.base))}, OTHER {escaped(side(comparison.other))}",
        "\n".join(
            f"- {escaped(clip_end(f'{label}: {sentence}', REMARK_CELLS))}"
            for label, sentence in remarks(comparison)
        ),
        "\n".join(
            [
                _cells(_TITLES),
                _cells(["---", "---:", "---:", "---:", "---:", "---"]),
                *(
                    _cells(
                        escaped(cell)
                        for cell in (
                            *(row.label.strip(), row.base, row.other, row.change, row.interval),
                            VERDICT_WORDS[row.verdict],
                        )
                    )
                    for row in rows(comparison, verbose=verbose)
                ),
            ]
        ),
    ]
    return "\n\n".join(block for block in blocks if block)


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
