"""The run as a pull-request comment: headline, where the time went, the loaders; nothing acts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.analysis.summary import RunSummary
from trainprof.report.ending import (
    cause,
    ending,
    is_memory_death,
    memory_before_the_end,
    progress,
)
from trainprof.report.ledger_table import LedgerTable, ledger_table
from trainprof.report.safe_text import one_line, with_safe_text
from trainprof.report.sections import outlier_sentence, why_not_measured
from trainprof.report.units import NOT_MEASURED, count, counted, percent, seconds, share_of

LOADERS_SHOWN: Final = 5

# Entities cannot be markup, also inside a table's cell; the backslash escapes are easier to read.
_ESCAPES: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "&#124;",
        "`": "&#96;",
        "\\": "&#92;",
        # An entity would still call the person: the mention is looked for in the rendered text.
        "@": "@\u200b",
        **{character: "\\" + character for character in "*_[]#~"},
    }
)


def render(summary: RunSummary) -> str:
    """Returns the run as GitHub-flavoured Markdown, ended by a newline."""
    summary = with_safe_text(summary)
    blocks = [
        f"**{escaped(summary.verdict.headline)}**",
        _ending(summary),
        _ledger(summary),
        _steps(summary),
        _loaders(summary),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escaped(text: str) -> str:
    """Returns `text` as Markdown that shows it literally: no markup, HTML, mention or link."""
    plain = " ".join(one_line(text).split())
    return plain.translate(_ESCAPES).replace("://", ":&#47;&#47;").replace("www.", "www&#46;")


def _ending(summary: RunSummary) -> str:
    reason, got_through = cause(summary), ", ".join(progress(summary))
    sentences = (
        [f"{ending(summary)}: {got_through}."]
        if reason is None
        else [f"{ending(summary)}: {reason}.", f"It got through {got_through}."]
    )
    if is_memory_death(summary):
        sentences += memory_before_the_end(summary)
    return " ".join(escaped(sentence) for sentence in sentences)


def _ledger(summary: RunSummary) -> str:
    table = ledger_table(summary)
    if table is None:
        return escaped(f"Where the time went: {why_not_measured(summary, 'ledger')}.")
    rows = [
        [escaped(row.label), row.seconds, row.percent, row.per_step]
        for row in [*table.rows, table.total]
    ]
    titles = ["where the time went", table.run_unit, "% of wall time", _step_title(table)]
    return _table(titles, rows if table.step_unit else [row[:-1] for row in rows])


def _step_title(table: LedgerTable) -> str:
    return f"{table.step_unit} a step" if table.step_unit else ""


def _steps(summary: RunSummary) -> str:
    step = summary.training.step_s
    if step is None:
        return escaped(f"Steps: {why_not_measured(summary, 'training.step_s')}.")
    told = [
        f"Steps: median {seconds(step.p50)}, p95 {seconds(step.p95)}, max {seconds(step.max)} "
        f"over {counted(summary.training.steady_steps, 'steady step')}"
    ]
    if summary.outliers:
        worst = max(summary.outliers, key=lambda outlier: outlier.seconds)
        told.append(f"{counted(len(summary.outliers), 'outlier')}: {outlier_sentence(worst)}")
    evaluation = summary.evaluation
    if evaluation.passes:
        share = percent(share_of(evaluation.data_wait_s, evaluation.seconds))
        passes = counted(evaluation.passes, "evaluation pass", "evaluation passes")
        told.append(f"{passes} took {seconds(evaluation.seconds)}, waiting for data {share}")
    return escaped("; ".join(told) + ".")


def _loaders(summary: RunSummary) -> str:
    if not summary.loaders:
        return "No DataLoader was seen."
    rows = [
        [
            escaped(loader.site),
            escaped(loader.role),
            "?" if loader.num_workers is None else str(loader.num_workers),
            count(loader.iterations),
            seconds(loader.wait_s.mean) if loader.wait_s else NOT_MEASURED,
            seconds(loader.wait_s.p95) if loader.wait_s else NOT_MEASURED,
            seconds(loader.first_batch_s.mean) if loader.first_batch_s else NOT_MEASURED,
        ]
        for loader in summary.loaders[:LOADERS_SHOWN]
    ]
    titles = ["loader", "used for", "workers", "batches", "wait mean", "p95", "first batch, mean"]
    table = _table(titles, rows, words=2)
    hidden = len(summary.loaders) - LOADERS_SHOWN
    return f"{table}\n\nand {hidden} more." if hidden > 0 else table


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Returns a table whose first `words` columns are words, the others numbers."""
    rules = ["---" if index < words else "---:" for index in range(len(titles))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows))
