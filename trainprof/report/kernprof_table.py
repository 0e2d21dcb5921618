"""Line times as kernprof prints them, byte for byte: other programs read this table."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.lines.times import NS_S, FunctionTimes, LineProfile, block
from trainprof.report.text.safe_text import one_line

KERNPROF_UNIT_S: Final = 1e-6
# Without their text the lines between two timed ones are empty, and a damaged log may name any.
MAX_EMPTY_LINES: Final = 10_000

_TITLES: Final = ("Line #", "Hits", "Time", "Per Hit", "% Time", "Line Contents")
_EMPTY: Final = ("", "", "", "")
# line_profiler 5's rc/line_profiler.toml; a column grows with what stands in it.
_LINE_CELLS: Final = 6
_CELLS: Final = (9, 12, 8, 8)
_KEPT_CONTROLS: Final = ("\t", "\f")
_LOST: Final = """
Could not find file {}
Are you sure you are running this program from the same directory
that you ran the profiler from?
Continuing without the function's contents."""

_Cells = tuple[str, str, str, str]


def render(
    profile: LineProfile, *, unit_s: float = KERNPROF_UNIT_S, skip_zero: bool = False
) -> str:
    """Returns the tables of all functions; `skip_zero` leaves out those never reached.

    Source: show_text and show_func of line_profiler 5.1.0.
    """
    shown = (function for function in profile.functions if function.rows or not skip_zero)
    tables = [_table(function, unit_s) for function in shown]
    return "".join([f"Timer unit: {unit_s:g} s\n\n", *tables])


def _table(function: FunctionTimes, unit_s: float) -> str:
    text = block(function)
    if text is None:
        lines = _LOST.format(plain(function.file)).split("\n")
        first = min([function.line, *(row.line for row in function.rows)])
        last = max([first, *(row.line for row in function.rows)])
        numbers = [row.line for row in function.rows]
        if last - first < MAX_EMPTY_LINES:
            numbers = list(range(function.line, function.line + last - first + 1))
        numbered = [(number, "") for number in numbers]
    else:
        file, name = plain(function.file), plain(function.name)
        lines = [f"File: {file}", f"Function: {name} at line {function.line}"]
        numbered = list(enumerate(text, start=function.line))
    cells = line_cells(function, unit_s)
    widths = [
        max([least, *(len(row[at]) for row in cells.values())]) for at, least in enumerate(_CELLS)
    ]
    template = " ".join(f"%{width}s" for width in (_LINE_CELLS, *widths)) + "  %-s"
    header = template % _TITLES
    rows = (
        template % (number, *cells.get(number, _EMPTY), plain(line.rstrip("\n").rstrip("\r")))
        for number, line in numbered
    )
    total = f"Total time: {function.time * NS_S:g} s"
    return "\n".join([total, *lines, "", header, "=" * len(header), *rows, "\n"])


def line_cells(function: FunctionTimes, unit_s: float) -> dict[int, _Cells]:
    """Returns hits, time, time per hit and percent of each line, as kernprof writes them."""
    total, scale = function.time, NS_S / unit_s
    return {
        line: (
            _short("%d", "%g", hits, _CELLS[0]),
            _short("%5.1f", "%5.3g", time * scale, _CELLS[1]),
            _short("%5.1f", "%5.3g", float(time) * scale / hits, _CELLS[2]),
            "" if total == 0 else "%5.1f" % (100 * time / total),
        )
        for line, hits, time in function.rows
    }


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
