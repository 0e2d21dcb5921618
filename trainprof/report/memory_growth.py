"""Memory of the process that trains, where it grows with every step."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.memory_figures import MemoryGrowth
from trainprof.analysis.summary import RunSummary
from trainprof.report.layout import Page
from trainprof.report.units import byte_count, counted

# More steps than that are nobody's worry.
_FAR_OFF: Final = 10_000_000


def memory_growth_section(summary: RunSummary, page: Page) -> list[Text]:
    """By how much it grows, for how long that can go on, and what to look for."""
    told = growing_memory(summary)
    return [] if told is None else page.labelled("Memory", told)


def growing_memory(summary: RunSummary) -> list[str] | None:
    """Returns that in fragments of a sentence; None where it does not grow."""
    grown = summary.memory_growth
    if grown is None:
        return None
    return [
        f"the training process grew by {byte_count(grown.bytes_per_step)} a step",
        f"from {byte_count(grown.first_bytes)} to {byte_count(grown.last_bytes)} in "
        f"{counted(grown.steps, 'step')}",
        _how_long(grown),
        _what_it_may_be(grown),
    ]


def _how_long(grown: MemoryGrowth) -> str:
    left = grown.steps_left
    if left is None or grown.room_bytes is None or left > _FAR_OFF:
        return ""
    about = counted(int(float(f"{left:.2g}")), "more step")
    return f"the {byte_count(grown.room_bytes)} left would last some {about}"


def _what_it_may_be(grown: MemoryGrowth) -> str:
    kept = (
        "something is kept at every step: a list that is only added to, losses or outputs with "
        "their graph (keep loss.item() or x.detach())"
    )
    return kept if grown.passes > 1 else f"{kept}, or data that is read in once"
