"""What a batch takes as bars: groups of parts, each with the whole that its parts add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.report.page.bars import bar
from trainprof.report.text.batch_time import BatchPart
from trainprof.report.text.layout import Page
from trainprof.report.text.units import rounded_parts, step_scale

_GAP: Final = "  "
_BAR_STYLE: Final = "cyan"
_PERCENT_CELLS: Final = len("100.0 %")
_WIDEST_BAR: Final = 40
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Parts of one whole.

    Attributes:
        title: What the whole is; "" for parts alone, without a line for the whole.
        parts: In order of reading.
    """

    title: str
    parts: Sequence[BatchPart]


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    share: float
    seconds: str
    percent: str
    is_whole: bool


def batch_bars(groups: Sequence[BatchGroup], page: Page, *, indent: int = 2) -> list[Text]:
    """Returns a line for each part; a group is in one unit and may have a line for its whole."""
    shown = [group for group in groups if group.parts]
    if not shown:
        return []
    rows = [row for group in shown for row in _rows(group)]
    label = max(cell_len(row.label) for row in rows)
    seconds = max(cell_len(row.seconds) for row in rows)
    taken = indent + label + 3 * len(_GAP) + seconds + _PERCENT_CELLS
    width = min(page.width - taken, _WIDEST_BAR)
    if width < _SHORTEST_BAR:
        return [line for row in rows for line in page.paragraph(_in_words(row), indent=indent)]
    return [_line(row, page, (indent, label, width, seconds)) for row in rows]


def folded(parts: Sequence[BatchPart], least_share: float) -> list[BatchPart]:
    """Returns the parts, those below `least_share` as one where they are several."""
    some = [part for part in parts if part.seconds > 0]
    small = [part for part in some if part.share < least_share]
    if len(small) < 2:
        return some
    seconds, share = sum(part.seconds for part in small), sum(part.share for part in small)
    rest = BatchPart("rest", f"rest ({len(small)} smaller)", seconds, share)
    return [*(part for part in some if part.share >= least_share), rest]


def _rows(group: BatchGroup) -> list[_Row]:
    parts, whole_s = group.parts, sum(part.seconds for part in group.parts)
    scale = step_scale(whole_s)
    written = rounded_parts([part.seconds / scale.factor for part in parts], scale.decimals)
    shares = [part.seconds / whole_s if whole_s > 0 else 0.0 for part in parts]
    tenths = rounded_parts([share * 100 for share in shares], 1)
    margin = "  " if group.title else ""
    rows = [
        _Row(
            f"{margin}{part.words}",
            shares[index],
            f"{scale.written(written[index])} {scale.unit}",
            f"{tenths[index] / 10:.1f} %",
            is_whole=False,
        )
        for index, part in enumerate(parts)
    ]
    if not group.title:
        return rows
    total = f"{scale.written(sum(written))} {scale.unit}"
    return [_Row(group.title, 0.0, total, "", is_whole=True), *rows]


def _line(row: _Row, page: Page, cells: tuple[int, int, int, int]) -> Text:
    indent, label, width, seconds = cells
    drawing = page.text(bar(row.share, width), _BAR_STYLE)
    words = page.text(row.label, "bold" if row.is_whole else "")
    numbers = f"{row.seconds:>{seconds}}{_GAP}{row.percent:>{_PERCENT_CELLS}}"
    return Text.assemble(
        " " * indent,
        words,
        " " * (label - words.cell_len) + _GAP,
        drawing,
        " " * (width - drawing.cell_len) + _GAP,
        page.text(numbers),
    )


def _in_words(row: _Row) -> str:
    """For a page too narrow for bars."""
    return f"{row.label.strip()}: {row.seconds}" + (f", {row.percent}" if row.percent else "")
