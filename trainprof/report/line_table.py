"""Line times as kernprof prints them, byte for byte: other programs read this table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.analysis.line_times import FunctionTimes, LineProfile, block
from trainprof.report.safe_text import one_line

KERNPROF_UNIT_S: Final = 1e-6
# Without their text the lines between two timed ones are empty, and a damaged log may tell any.
MAX_EMPTY_LINES: Final = 10_000

_TITLES: Final = ("Line #", "Hits", "Time", "Per Hit", "% Time", "Line Contents")
# line_profiler 5's rc/line_profiler.toml; a column grows with what stands in it.
_LINE_CELLS: Final = 6
_HITS_CELLS: Final = 9
_TIME_CELLS: Final = 12
_PER_HIT_CELLS: Final = 8
_PERCENT_CELLS: Final = 8
_KEPT_CONTROLS: Final = ("\t", "\f")

_Cells = tuple[str, str, str, str]


def render(
    profile: LineProfile, *, unit_s: float = KERNPROF_UNIT_S, skip_zero: bool = False
) -> str:
    """Returns the tables of all functions.

    Args:
        profile: Its functions are shown in their order.
        unit_s: Unit of the columns, in seconds.
        skip_zero: Leave out functions that were never reached.

    Source:
        show_text and show_func of line_profiler 5.1.0.
    """
    tables = [
        _table(function, profile.unit_s, unit_s)
        for function in profile.functions
        if function.rows or not skip_zero
    ]
    return "".join([f"Timer unit: {unit_s:g} s\n\n", *tables])


def _table(function: FunctionTimes, timer_unit_s: float, unit_s: float) -> str:
    lines, opening = _lines(function)
    cells = line_cells(function, timer_unit_s / unit_s)
    template = _template(list(cells.values()))
    header = template % _TITLES
    empty = ("", "", "", "")
    rows = (
        template % (number, *cells.get(number, empty), plain(line.rstrip("\n").rstrip("\r")))
        for number, line in lines
    )
    total = "%g" % (function.time * timer_unit_s)
    return "\n".join(
        [f"Total time: {total} s", *opening, "", header, "=" * len(header), *rows, "\n"]
    )


def _lines(function: FunctionTimes) -> tuple[Iterable[tuple[int, str]], list[str]]:
    """Returns the numbered lines of a function, and what stands above them."""
    text = block(function)
    if text is not None:
        place = [
            f"File: {plain(function.file)}",
            f"Function: {plain(function.name)} at line {function.line}",
        ]
        return enumerate(text, start=function.line), place
    lost = [
        "",
        f"Could not find file {plain(function.file)}",
        "Are you sure you are running this program from the same directory",
        "that you ran the profiler from?",
        "Continuing without the function's contents.",
    ]
    numbers = [row.line for row in function.rows]
    count = max(numbers) - min(min(numbers), function.line) + 1 if numbers else 1
    if count <= MAX_EMPTY_LINES:
        return ((function.line + index, "") for index in range(count)), lost
    return ((number, "") for number in sorted(set(numbers))), lost


def line_cells(function: FunctionTimes, scale: float) -> dict[int, _Cells]:
    """Returns hits, time, time per hit and percent of each line, as kernprof writes them.

    Args:
        function: Its rows are shown.
        scale: Units of the columns in a timer unit.
    """
    total = function.time
    cells = {}
    for row in function.rows:
        time = row.time * scale
        per_hit = float(row.time) * scale / row.hits
        cells[row.line] = (
            _short("%d", "%g", row.hits, _HITS_CELLS),
            _short("%5.1f", "%5.3g", time, _TIME_CELLS),
            _short("%5.1f", "%5.3g", per_hit, _PER_HIT_CELLS),
            "" if total == 0 else "%5.1f" % (100 * row.time / total),
        )
    return cells


def plain(text: str) -> str:
    """Returns `text` without what acts on a terminal; tabs and form feeds stay as they are."""
    if text.isascii() and text.isprintable():
        return text
    kept = _KEPT_CONTROLS
    for control in kept:
        if control in text:
            return control.join(plain(part) for part in text.split(control))
    return one_line(text)


def _short(form: str, scientific: str, value: float, cells: int) -> str:
    text = form % value
    return text if len(text) <= cells else scientific % value


def _template(cells: Sequence[_Cells]) -> str:
    columns = (_HITS_CELLS, _TIME_CELLS, _PER_HIT_CELLS)
    widths = [max([least, *(len(row[at]) for row in cells)]) for at, least in enumerate(columns)]
    return " ".join(f"%{width}s" for width in (_LINE_CELLS, *widths, _PERCENT_CELLS)) + "  %-s"
