"""The commands that go on from a page: what times the lines it names, what tries its changes."""

from __future__ import annotations

import shlex
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.finding import ALWAYS, WITHOUT_CHANGE, Finding
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.untracked import is_judged, not_judged
from trainprof.report.text.layout import Page

_TIMING: Final = "time each line:"
_TRYING: Final = "measure that:"


def next_commands(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Returns label, opening and command of what the page's advice is followed up by.

    None of a run that nobody could start again by what is known of it.
    """
    told, command = [], shlex.join(summary.run.words_again)
    if not command:
        return []
    if summary.lines is None and _sends_to_lines(summary):
        told.append(("Lines", _TIMING, f"trainprof lines {command}"))
    if any(one.is_tried_by_tune for one in summary.findings):
        told.append(("Verify", _TRYING, f"trainprof tune {command}"))
    return told


def next_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns those commands, each on a line of its own."""
    return [line for told in next_commands(summary) for line in page.command(*told)]


def _sends_to_lines(summary: RunSummary) -> bool:
    if summary.findings or not is_judged(summary):
        return any(map(_is_of_lines, summary.findings))
    return not summary.run.is_on_device and bool(not_judged(summary))


def _is_of_lines(finding: Finding) -> bool:
    lines = finding.traits.lines
    return lines == ALWAYS or (lines == WITHOUT_CHANGE and not finding.change)
