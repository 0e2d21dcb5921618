"""That a run timed lines, what it took, and how to see them: the end of such a run's page."""

from __future__ import annotations

import shlex

from rich.text import Text

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.lines.notes import cost_in_short
from trainprof.report.text.layout import Page


def lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """What timing lines took, and the command that shows them."""
    if summary.lines is None:
        return []
    told = page.labelled("Lines", cost_in_short(summary.lines))
    if summary.run.directory is None:
        return told
    command = f"trainprof lines {shlex.quote(summary.run.directory)}"
    return [*told, *page.command("", "see them:", command)]
