"""Memory that may not last: what grows with every step or batch, and what was nearly full."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.summary.memory import MemoryGrowth
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page
from trainprof.report.text.units import byte_count, counted, percent

# More steps than that are nobody's worry.
_FAR_OFF: Final = 10_000_000
# Of the file system that workers hand their batches over in: a larger batch, and they die.
_SHM_FULL_SHARE: Final = 0.8
# Of the machine's.
_LEAST_FREE_SHARE: Final = 0.03


def memory_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns a sentence for each thing, none where memory is nobody's worry."""
    told = memory_sentences(summary)
    return [line for sentence in told for line in page.labelled("Memory", sentence)]


def memory_sentences(summary: RunSummary) -> list[list[str]]:
    """Returns what is to be known of memory, each in fragments of a sentence."""
    told = [_growing(summary), _shared_memory(summary), _short_of_memory(summary)]
    return [sentence for sentence in told if sentence]


def _growing(summary: RunSummary) -> list[str]:
    grown = summary.memory_growth
    if grown is None:
        return []
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


def _shared_memory(summary: RunSummary) -> list[str]:
    memory = summary.system.memory if summary.system else {}
    used, total = (
        number_at(memory, "shm_used_bytes", "max"),
        number_at(memory, "shm_total_bytes"),
    )
    if used is None or not total or used < _SHM_FULL_SHARE * total:
        return []
    return [
        f"{percent(used / total)} of the {byte_count(total)} of shared memory (/dev/shm) were "
        "taken",
        "workers hand batches over in it and die when it is full: give it more (docker run "
        "--shm-size=8g), or have fewer batches ahead",
    ]


def _short_of_memory(summary: RunSummary) -> list[str]:
    """Says that the machine's memory was all but taken; what files have of it can be given back."""
    memory = summary.system.memory if summary.system else {}
    total, free = (
        number_at(memory, "host_total_bytes"),
        number_at(memory, "host_available_bytes", "min"),
    )
    if not total or free is None or free >= _LEAST_FREE_SHARE * total:
        return []
    return [
        f"{byte_count(free)} of the machine's {byte_count(total)} of memory were left",
        "when none is, the kernel ends a process",
    ]
