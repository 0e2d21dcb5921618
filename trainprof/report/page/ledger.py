"""The ledger as lines of a page: label, bar, seconds, share of the wall time, part of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.report.page.bars import bar
from trainprof.report.text.layout import Page
from trainprof.report.text.ledger_table import LedgerRow, LedgerTable

# Lines that a ledger takes besides its rows: heading and total.
FRAME_LINES: Final = 2
_TITLE: Final = "Where the time went"
_INDENT: Final = "  "
_GAP: Final = "  "
_BAR_STYLE: Final = "cyan"
_DEVICE_TITLE: Final = "s on device"
_PERCENT_CELLS: Final = len("100.0 %")
_WIDEST_BAR: Final = 60
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class _Widths:
    """Cells of each column; 0 where it is left out."""

    label: int
    bar: int
    seconds: int
    step: int
    device: int


def ledger_lines(
    table: LedgerTable, page: Page, *, headline_keys: tuple[str, ...], headline_style: str
) -> list[Text]:
    """Returns heading, rows and total.

    Args:
        table: The ledger.
        page: Where it is written.
        headline_keys: Keys that the headline is about: their bars carry its style.
        headline_style: That style.
    """
    widths = _widths(table, page)
    longest = max(row.share for row in table.rows)
    lines = [_heading(table, widths, page)]
    for row in table.rows:
        is_named = bool(row.keys) and set(row.keys) <= set(headline_keys)
        style = headline_style if is_named else _BAR_STYLE
        drawing = page.text(bar(row.share / longest, widths.bar), style)
        lines.append(_line(row, drawing, widths, page))
    total = _line(table.total, page.text(""), widths, page)
    total.stylize("bold")
    return [*lines, total]


def _widths(table: LedgerTable, page: Page) -> _Widths:
    rows = [*table.rows, table.total]
    label = max(page.text(row.label).cell_len for row in rows)
    seconds = max(len(_run_title(table)), *(len(row.seconds) for row in rows))
    step = max(len(_step_title(table)), *(len(row.per_step) for row in rows))
    room = page.width - len(_INDENT) - label - len(_GAP) - seconds - len(_GAP) - _PERCENT_CELLS
    if table.step_unit is None or room < len(_GAP) + step:
        step = 0
    room -= len(_GAP) + (len(_GAP) + step if step else 0)
    device = max(len(_DEVICE_TITLE), *(len(row.on_device) for row in rows))
    if not table.has_device or room < len(_GAP) + device:
        device = 0
    room -= len(_GAP) + device if device else 0
    length = min(room, _WIDEST_BAR) if room >= _SHORTEST_BAR else 0
    return _Widths(label, length, seconds, step, device)


def _heading(table: LedgerTable, widths: _Widths, page: Page) -> Text:
    title_cells = len(_INDENT) + widths.label + (len(_GAP) + widths.bar if widths.bar else 0)
    title = _TITLE
    of_ranks = f"{title}, mean of {table.ranks} ranks"
    if table.ranks > 1 and len(of_ranks) <= title_cells:
        title = of_ranks
    return page.text(
        title.ljust(title_cells)
        + _numbers(_run_title(table), "% wall", _step_title(table), _DEVICE_TITLE, widths),
        "bold",
    )


def _line(row: LedgerRow, drawing: Text, widths: _Widths, page: Page) -> Text:
    label = page.text(row.label)
    line = page.text(_INDENT) + label + page.text(" " * (widths.label - label.cell_len))
    if widths.bar:
        padding = " " * (widths.bar - cell_len(drawing.plain))
        line = line + page.text(_GAP) + drawing + page.text(padding)
    numbers = _numbers(row.seconds, row.percent, row.per_step, row.on_device, widths)
    return line + page.text(numbers.rstrip() if widths.device else numbers)


def _numbers(seconds: str, percent: str, per_step: str, device: str, widths: _Widths) -> str:
    numbers = f"{_GAP}{seconds:>{widths.seconds}}{_GAP}{percent:>{_PERCENT_CELLS}}"
    numbers += f"{_GAP}{per_step:>{widths.step}}" if widths.step else ""
    return numbers + (f"{_GAP}{device:>{widths.device}}" if widths.device else "")


def _run_title(table: LedgerTable) -> str:
    return {"s": "seconds", "min": "minutes", "h": "hours"}.get(table.run_unit, table.run_unit)


def _step_title(table: LedgerTable) -> str:
    return f"{table.step_unit} a step" if table.step_unit else ""
