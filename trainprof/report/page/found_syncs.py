"""What --find-syncs found: a line on the short page, every place on the verbose one."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page
from trainprof.report.text.units import count, counted

PLACES_SHOWN: Final = 3
_FIELD: Final = "found_syncs"


def found_syncs_section(summary: RunSummary, page: Page) -> list[Text]:
    """Calls that wait for the device inside torch's native code, by line."""
    found, why_not = summary.found_syncs, summary.not_observed.get(_FIELD)
    if found is None:
        return page.labelled("Find syncs", [f"n/a: {why_not}"]) if why_not else []
    last = found.first_step + found.steps
    told = [f"in steps {count(found.first_step + 1)} to {count(last)}"]
    if found.steps == 0:
        told = ["the run ended before one more step"]
    shown = found.calls if page.verbose else found.calls[:PLACES_SHOWN]
    told += [f"{page.site(call.site)} {counted(call.count, 'wait')} in C++" for call in shown]
    hidden = len(found.calls) - len(shown)
    if hidden:
        told.append(counted(hidden, "more line"))
    if not found.calls:
        told.append("no wait inside C++ code")
    if found.known_calls:
        told.append(f"and {count(found.known_calls)} by calls that Syncs and Transfers tell of")
    told.append(why_not or "")
    return page.labelled("Find syncs", told)
