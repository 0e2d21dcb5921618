"""A `tune` run as a pull-request comment: the answer, the change, one table."""

from __future__ import annotations

from collections.abc import Iterable

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.markdown import escaped
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


def render(summary: RunSummary) -> str:
    """Returns a `tune` run as GitHub-flavoured Markdown, ended by a newline."""
    summary = with_safe_text(summary)
    tuning, best = summary.tuning, summary.recommended
    assert tuning is not None
    done = ", ".join(what_was_done(summary, tuning))
    blocks = [
        f"**{escaped(headline(summary))}**",
        "\n".join(f"- {escaped(change)}" for change in (best.change if best else ())),
        f"{escaped(summary.run.name)}: {escaped(done)}",
        _table(summary),
        "\n".join(f"- {escaped(f'{label}: {said}')}" for label, said in remarks(summary)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(summary: RunSummary) -> str:
    lines = [
        _row(("Trial", *TITLES, "")),
        _row(("---", *("---:" for _ in TITLES), "---")),
        *(
            _row(escaped(one) for one in (name_of(row), *cells(row), result_word(row)))
            for row in summary.trials
        ),
    ]
    return "\n".join(lines)


def _row(columns: Iterable[str]) -> str:
    return f"| {' | '.join(columns)} |"
