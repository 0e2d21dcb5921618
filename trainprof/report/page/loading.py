"""A loader in full: its settings, what limits it, and where a batch's time goes."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import (
    batch_bars,
)
from trainprof.report.text.ending import ending
from trainprof.report.text.layout import BLANK, Page
from trainprof.report.text.loader_words import (
    LEGEND,
    UNKNOWN_LIMIT,
    batch_groups,
    configuration,
    distributions,
    faults,
    limit_words,
    makers,
    making,
    slow_sample_columns,
    totals,
    warnings,
    worker_columns,
)
from trainprof.report.text.safe_text import with_safe_text


def render_loader(summary: RunSummary, index: int, page: Page) -> str:
    """Returns the loader at `index` of `summary.loaders` as a verbose page."""
    summary, page = with_safe_text(summary), replace(page, verbose=True)
    run = page.paragraph(f"{ending(summary)}.")
    return page.written([*run, *BLANK, *_in_full(summary.loaders[index], summary, page)])


def loader_details(summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of each loader, for a page of the whole run."""
    each = (_in_full(loader, summary, page) for loader in summary.loaders)
    return [line for lines in each for line in (*BLANK, *lines)]


def _in_full(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    fetch, bars = loader.fetch, batch_bars(batch_groups(loader), page)
    limit = limit_words(loader, summary) or (loader.bound.by if loader.bound else UNKNOWN_LIMIT)
    notes = ([sentence] for sentence in (*faults(loader), *warnings(loader, summary)))
    workers = page.table(worker_columns(loader))
    blocks = [
        [
            *page.paragraph(f"Loader {loader.id} at {loader.site}: {makers(loader)}", style="bold"),
            *page.labelled("Limit", [limit]),
            *page.labelled_rows("Note", notes),
        ],
        [
            *page.labelled("Facts", configuration(loader)),
            *page.labelled("Run", totals(loader)),
            *(page.labelled("Batches", making(fetch)) if fetch else ()),
        ],
        [*page.paragraph("Where a batch's time goes", style="bold"), *bars] if bars else [],
        page.table(distributions(loader)),
        [*workers, *page.paragraph(LEGEND, indent=2)] if workers else [],
        page.table(slow_sample_columns(fetch)) if fetch else [],
    ]
    lines: list[Text] = []
    for block in blocks:
        lines += [*(BLANK if lines and block else ()), *block]
    return lines
