"""The lines of the user's that a step spends most time in."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich.text import Text

from trainprof.analysis.stacks.hot_lines import WORKER_THREAD
from trainprof.analysis.summary.code import HottestLine
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.units import percent

_SHOWN_LINES: Final = 3
# Of a step, at least.
_SHOWN_FROM_SHARE: Final = 0.05
# Of a step: a narrower interval is shown as its middle.
_NARROW: Final = 0.05


def hot_lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns the hottest lines in a row, on a verbose page a table of all."""
    if page.verbose:
        return _table(summary.hot_lines, page)
    sure = [line for line in summary.hot_lines if line.share[0] >= _SHOWN_FROM_SHARE]
    shown = sure[:_SHOWN_LINES]
    if not shown:
        return []
    times = Counter(line.site for line in shown)
    return page.labelled("Hot lines", [_named(x, page, times[x.site] > 1) for x in shown])


def _named(line: HottestLine, page: Page, names_part: bool) -> str:
    """Returns the line with its share, and the part where the line stands in several."""
    who = " of each worker" if line.thread == WORKER_THREAD else ""
    part = f" ({line.part.replace('_', ' ')})" if names_part else ""
    return f"{page.site(line.site)} {line.function}{part} {_share_words(line)}{who}"


def _share_words(line: HottestLine) -> str:
    """Returns "31 %", or "20 to 45 %" where that is not known well."""
    low, high = line.share
    if high - low <= _NARROW:
        return percent(line.middle)
    return f"{round(100 * low)} to {percent(high)}"


def _table(lines: list[HottestLine], page: Page) -> list[Text]:
    if not lines:
        return []
    columns = [
        Column("Hot line", [line.site for line in lines], is_number=False, gives_way=True),
        Column("function", [line.function for line in lines], is_number=False, dropped=2),
        Column("part", [line.part for line in lines], is_number=False),
        Column("thread", [line.thread for line in lines], is_number=False, dropped=1),
        Column("of a step", [_share_words(line) for line in lines]),
        Column("samples", [str(line.samples) for line in lines], dropped=3),
    ]
    return [Text(), *page.table(columns)]
