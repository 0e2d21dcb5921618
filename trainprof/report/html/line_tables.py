"""The lines of each timed function as a table, cold ones folded as on the page of `lines`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainprof.analysis.summary.code import NS_S, LineProfile
from trainprof.report.line_page import ListingRow, line_notes, listing_rows
from trainprof.report.text.safe_text import one_line
from trainprof.report.text.units import seconds

_MOST_FUNCTIONS: Final = 30
_MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class TimedFunction:
    name: str
    site: str
    time: str
    rows: list[ListingRow]


def functions(profile: LineProfile) -> list[TimedFunction]:
    """Returns functions with line times, the slowest first."""
    timed = sorted((x for x in profile.functions if x.rows), key=lambda x: -x.time)
    return [
        TimedFunction(
            one_line(function.name),
            one_line(profile.site(function)),
            seconds(function.time * NS_S),
            listing_rows(function)[:_MOST_ROWS],
        )
        for function in timed[:_MOST_FUNCTIONS]
    ]


def notes(profile: LineProfile) -> list[str]:
    """Returns what to know of the times."""
    return [one_line(note) for note in line_notes(profile)]
