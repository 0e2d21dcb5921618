"""One loader in full: what it is, what its batches take, who makes them, which samples are slow."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.batch_bars import batch_bars
from trainprof.report.text.ending import ending
from trainprof.report.text.layout import Page, written
from trainprof.report.text.loader_bound import UNKNOWN, limit_words
from trainprof.report.text.loader_tables import (
    LEGEND,
    batch_groups,
    distributions,
    facts,
    making,
    slow_sample_columns,
    totals,
    worker_columns,
)
from trainprof.report.text.loader_warnings import faults, warnings
from trainprof.report.text.loader_words import makers
from trainprof.report.text.safe_text import with_safe_text

BLANK: Final = (Text(),)


def render(
    summary: RunSummary, index: int, *, width: int, color: bool, unicode: bool = True
) -> str:
    """Returns one loader as a page of text.

    Args:
        summary: The run.
        index: Of the loader in `summary.loaders`.
        width: Cells in a line; no line is wider.
        color: Allow colour codes; without it the text holds no escape at all.
        unicode: False gives ASCII only.
    """
    summary = with_safe_text(summary)
    page = Page(width=width, unicode=unicode, verbose=True)
    loader = summary.loaders[index]
    run = page.paragraph(f"trainprof: {ending(summary)}")
    return written([*run, *BLANK, *loader_lines(loader, summary, page)], page, color=color)


def loader_details(summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of each loader, for a page of the whole run."""
    each = (loader_lines(loader, summary, page) for loader in summary.loaders)
    return [line for lines in each for line in (*BLANK, *lines)]


def loader_lines(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of a loader."""
    title = page.paragraph(f"Loader {loader.id} at {loader.site}: {makers(loader)}", style="bold")
    blocks = [
        [*title, *_limits(loader, summary, page)],
        [
            *page.labelled("Facts", facts(loader)),
            *page.labelled("Run", totals(loader)),
            *_made(loader, page),
        ],
        _bars(loader, page),
        page.table(distributions(loader)) if distributions(loader) else [],
        _workers(loader, page),
        _slow_samples(loader, page),
    ]
    lines: list[Text] = []
    for block in blocks:
        lines += [*(BLANK if lines and block else ()), *block]
    return lines


def _limits(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    limit = limit_words(loader, summary) or (loader.bound.by if loader.bound else UNKNOWN)
    lines = page.labelled("Limit", [limit])
    for number, told in enumerate([*faults(loader), *warnings(loader, summary)]):
        lines += page.labelled("" if number else "Note", [told])
    return lines


def _made(loader: Loader, page: Page) -> list[Text]:
    return page.labelled("Batches", making(loader.fetch)) if loader.fetch else []


def _bars(loader: Loader, page: Page) -> list[Text]:
    bars = batch_bars(batch_groups(loader), page)
    return [*page.paragraph("Where a batch's time goes", style="bold"), *bars] if bars else []


def _workers(loader: Loader, page: Page) -> list[Text]:
    columns = worker_columns(loader)
    return [*page.table(columns), *page.paragraph(LEGEND, indent=2)] if columns else []


def _slow_samples(loader: Loader, page: Page) -> list[Text]:
    columns = slow_sample_columns(loader.fetch) if loader.fetch else []
    return page.table(columns) if columns else []
