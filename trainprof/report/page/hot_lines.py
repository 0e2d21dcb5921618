"""The user's hottest lines: a row of the page, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.code import HottestLine
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import DEVICE_KEYS, DEVICE_LABEL, label_of, waits_are_merged
from trainprof.report.text.parts import without_cause
from trainprof.report.text.units import percent

_LABEL: Final = "Hot lines"
_SHOWN_LINES: Final = 3
# Of a step: a line that is surely below it is not shown.
_SHOWN_FROM_SHARE: Final = 0.05
# Of a step: a narrower interval is shown as its middle.
_NARROW: Final = 0.05


def hot_lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns the hottest lines in a row, on a verbose page a table of all."""
    if page.verbose:
        return _table(summary, page)
    words, least = hot_line_words(summary, page), len(_unexplained(summary)) or 1
    while len(lines := page.labelled(_LABEL, words)) > 1 and len(words) > least:
        words = words[:-1]
    return lines


def hot_line_words(summary: RunSummary, page: Page, *, with_files: bool = False) -> list[str]:
    """Returns "train.py:28 augment() 30 %" of each line that is shown.

    One in the file of the line before it is ":31", unless `with_files`.

    Those of large parts without a finding come first: they have no other place on the page.
    """
    unexplained = _unexplained(summary)
    sure = [line for line in summary.hot_lines if line.share[0] >= _SHOWN_FROM_SHARE]
    lines = _of_all_parts([*unexplained, *(line for line in sure if line not in unexplained)])
    words, last = [], ""
    for line in lines[: max(_SHOWN_LINES, len(unexplained))]:
        file, _, number = line.site.rpartition(":")
        place = page.site(line.site) if with_files or file != last else f":{number}"
        name = "" if line.function.startswith("<") else f" {line.function}()"
        who = " of a worker" if line.thread == "worker" else ""
        words.append(f"{place}{name} {_share_words(line)}{who}")
        last = file
    return words


def _unexplained(summary: RunSummary) -> list[HottestLine]:
    return [part.line for part in without_cause(summary) if part.line is not None]


def _of_all_parts(lines: Sequence[HottestLine]) -> list[HottestLine]:
    """Returns each line once, with what it takes of all parts of a step."""
    by_place: dict[tuple[str, str], HottestLine] = {}
    for line in lines:
        place = (line.site, line.thread)
        known = by_place.get(place)
        if known is not None:
            share = [min(a + b, 1.0) for a, b in zip(known.share, line.share, strict=True)]
            line = replace(known, share=share)
        by_place[place] = line
    return list(by_place.values())


def _share_words(line: HottestLine) -> str:
    """Returns "31 %", or "20 to 45 %" where that is not known well."""
    low, high = line.share
    if high - low > _NARROW:
        return f"{round(100 * low)} to {percent(high)}"
    return percent(line.middle)


def _table(summary: RunSummary, page: Page) -> list[Text]:
    lines = summary.hot_lines
    if not lines:
        return []
    merged = dict.fromkeys(DEVICE_KEYS, DEVICE_LABEL) if waits_are_merged(summary) else {}
    columns = [
        Column("Hot line", [line.site for line in lines], is_number=False, gives_way=True),
        Column("function", [line.function for line in lines], is_number=False, dropped=2),
        Column("part", [merged.get(x.part) or label_of(x.part) for x in lines], is_number=False),
        Column("thread", [line.thread for line in lines], is_number=False, dropped=1),
        Column("of a step", [_share_words(line) for line in lines]),
        Column("samples", [str(line.samples) for line in lines], dropped=3),
    ]
    return [Text(), *page.table(columns)]
