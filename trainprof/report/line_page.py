"""The page of line times, hot lines marked and cold ones folded, and kernprof's table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.code import (
    MODULE_CODE,
    NS_S,
    FunctionTimes,
    LineCost,
    LineProfile,
    block,
    of_process,
)
from trainprof.report.text.layout import BLANK, Column, Page
from trainprof.report.text.safe_text import clip_end, one_line
from trainprof.report.text.units import count, counted, percent, seconds

_HOT_SHARE: Final = 0.2
_WARM_SHARE: Final = 0.05
_COLD_SHARE: Final = 0.01
_STYLES: Final = {"hot": "bold red", "warm": "yellow", "": ""}
_FOLDED_AT_LEAST: Final = 4  # cold lines in a row
_OVERVIEW_FROM: Final = 3  # functions: then a table of them comes first
_TITLES: Final = ("Line", "Hits", "Time", "Per hit", "% time")
_EMPTY: Final = ("", "", "", "")
_GAP: Final = "  "
# Columns are dropped until the code has this width.
_CODE_CELLS: Final = 30
_TAB_CELLS: Final = 4
_WIDEST_NAME: Final = 40
_WHY: Final = {"profile": "under @profile", "-f": "named by -f"}
# kernprof's unit and the least column widths, as in rc/line_profiler.toml of line_profiler 5.
_KERNPROF_UNIT_S: Final = 1e-6
_TABLE_TITLES: Final = ("Line #", "Hits", "Time", "Per Hit", "% Time", "Line Contents")
_LINE_CELLS: Final = 6
_CELLS: Final = (9, 12, 8, 8)
# Rows without text between the first and last timed line; a damaged log may name any line.
_MAX_EMPTY_LINES: Final = 10_000
_LOST: Final = """
Could not find file {}
Are you sure you are running this program from the same directory
that you ran the profiler from?
Continuing without the function's contents."""
_Cells = tuple[str, str, str, str]
_UNITS: Final = {1.0: "s", 1e-3: "ms", 1e-6: "µs", 1e-9: "ns"}


def render(
    profile: LineProfile,
    page: Page,
    *,
    unit_s: float | None = None,
    skip_zero: bool = False,
    per_process: bool = False,
    closing: Sequence[str] = (),
) -> str:
    """Returns the functions in their order, then the notes; a verbose page folds no lines.

    Args:
        unit_s: Unit of all times in s; None: each time has its own.
        closing: Words and a command that end the page.
    """
    lines: list[Text] = []
    shown = [function for function in profile.functions if function.rows or not skip_zero]
    if per_process:
        for process in profile.processes():
            lines += [page.text(f"== {process.label} ==", "bold"), *BLANK]
            lines += _functions(of_process(profile, process).functions, profile, page, unit_s)
        shown = [function for function in shown if not function.rows]
    elif len(shown) >= _OVERVIEW_FROM:
        lines += [*_overview(shown, profile, page), *BLANK]
    lines += _functions(shown, profile, page, unit_s)
    for note in line_notes(profile, is_merged=not per_process):
        lines += page.paragraph(note)
    if closing:
        again, command = closing
        lines += page.commands("Saved:", [(command, again.rstrip(":"))])
    return page.written(lines)


def _functions(
    functions: Sequence[FunctionTimes], profile: LineProfile, page: Page, unit_s: float | None
) -> list[Text]:
    """Returns each function's lines; functions under `_COLD_SHARE` of the slowest by name only."""
    least = _COLD_SHARE * max((function.time for function in functions), default=0)
    minor = [function for function in functions if function.rows and function.time < least]
    minor = minor if len(minor) > 1 and not page.verbose else []
    lines: list[Text] = []
    for function in functions:
        if function in minor:
            continue
        name = page.shortened(function.name, page.width // 2)
        site = page.text(page.site(profile.site(function)))
        lines.append(Text.assemble(page.text(name, "bold"), "  ", site))
        spent = f"no line times: {function.unseen}"
        if function.rows:
            where = f" in {_where(function)}" if function.by_process else ""
            spent = f"{seconds(function.time * NS_S)}{where}"
        why = f" ({_why(function)})" if _why(function) else ""
        lost = ", source not found" if function.rows and not function.source else ""
        lines += page.paragraph(f"{spent}{why}{lost}", indent=2)
        lines += [*(_listing(function, page, unit_s) if function.rows else ()), *BLANK]
    if minor:
        names = ", ".join(page.shortened(function.name, _WIDEST_NAME) for function in minor)
        text = f"Under {percent(_COLD_SHARE)} of the slowest (shown by --verbose): {names}"
        lines += [*page.paragraph(text), *BLANK]
    return lines


def _overview(functions: Sequence[FunctionTimes], profile: LineProfile, page: Page) -> list[Text]:
    ranked = sorted(functions, key=lambda function: -function.time)
    sites = [profile.site(function) for function in ranked]
    return page.table(
        [
            Column("Function", [function.name for function in ranked], is_number=False),
            Column("at", sites, is_number=False, gives_way=True),
            Column("why", [*map(_why, ranked)], is_number=False, dropped=1),
            Column("time", [seconds(function.time * NS_S) for function in ranked]),
            Column("in", [*map(_where, ranked)], is_number=False, dropped=2),
        ]
    )


@dataclass(frozen=True, slots=True)
class ListingRow:
    """A line of a function, or several cold ones in a row; `heat`: hot|warm|"" of those timed.

    Attributes:
        cells: Line, hits, time, time per hit and percent.
        folded: How many lines it stands for, else 0.
    """

    cells: tuple[str, ...]
    code: str
    heat: str = ""
    is_timed: bool = True
    folded: int = 0


def listing_rows(
    function: FunctionTimes, unit_s: float | None = None, *, verbose: bool = False
) -> list[ListingRow]:
    """Returns a function's lines; a verbose listing folds none."""
    text, total = block(function), function.time
    numbers = [row.line for row in function.rows]
    codes = [""] * len(numbers)
    if text is not None:
        numbers = list(range(function.line, function.line + len(text)))
        codes = _dedented(text)
    share_of = {row.line: row.time / total for row in function.rows if total}
    shares = [share_of.get(number, 0.0) for number in numbers]
    cells = _cells(function, unit_s)
    folds = [False] * len(numbers) if verbose else _folds(shares, codes)
    rows = []
    for is_folded, group in groupby(range(len(numbers)), key=folds.__getitem__):
        part = list(group)
        if is_folded:
            share = sum(shares[at] for at in part)
            time_share = f", {percent(share)}" if share > 0 else ""
            words = f"… {count(len(part))} lines{time_share}"
            rows.append(ListingRow(("", *_EMPTY), words, is_timed=False, folded=len(part)))
            continue
        for at in part:
            share, number = shares[at], numbers[at]
            heat = "hot" if share >= _HOT_SHARE else "warm" if share >= _WARM_SHARE else ""
            code = one_line(codes[at])
            written = (str(number), *cells.get(number, _EMPTY))
            rows.append(ListingRow(written, code, heat, number in cells))
    return rows


def _listing(function: FunctionTimes, page: Page, unit_s: float | None) -> list[Text]:
    rows = listing_rows(function, unit_s, verbose=page.verbose)
    titles = list(_TITLES)
    if unit_s is not None:
        titles[2] = f"Time ({_UNITS.get(unit_s, f'{unit_s:g} s')})"
    columns = zip(titles, *(row.cells for row in rows), strict=True)
    widths = [max(map(cell_len, column)) for column in columns]
    kept = list(range(len(widths)))
    for given_up in (3, 1, 2):
        if page.width - sum(widths[at] + len(_GAP) for at in kept) >= _CODE_CELLS:
            break
        kept.remove(given_up)
    room = page.width - sum(widths[at] + len(_GAP) for at in kept) - len("> ")

    def line(row: Sequence[str], code: str, style: str, mark: str = " ") -> Text:
        padded = [" " * (widths[at] - cell_len(row[at])) + row[at] + _GAP for at in kept]
        code = clip_end(one_line(code, unicode=page.unicode), room)
        return page.text(f"{''.join(padded)}{mark} {code}".rstrip(), style)

    lines = [line(titles, "Line contents", "bold")]
    for row in rows:
        style = _STYLES[row.heat] if row.is_timed else "dim"
        lines.append(line(row.cells, row.code, style, ">" if row.heat == "hot" else " "))
    return lines


def _dedented(text: Sequence[str]) -> list[str]:
    lines = [line.rstrip().expandtabs(_TAB_CELLS) for line in text]
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line), default=0)
    return [line[margin:] for line in lines]


def _cells(function: FunctionTimes, unit_s: float | None) -> dict[int, tuple[str, ...]]:
    if unit_s is not None:
        cells = _line_cells(function, unit_s)
        return {line: tuple(cell.strip() for cell in row) for line, row in cells.items()}
    total = function.time
    return {
        row.line: (
            count(row.hits),
            seconds(row.time * NS_S),
            seconds(row.time * NS_S / row.hits),
            f"{100 * row.time / total:.1f}" if total > 0 else "",
        )
        for row in function.rows
    }


def _folds(shares: Sequence[float], codes: Sequence[str]) -> list[bool]:
    """Returns which lines are folded: cold ones not next to the function's head or a warm line."""
    opening = next((at for at, code in enumerate(codes) if not code.startswith("@")), len(codes))
    is_cold = [
        at > opening
        and share < _COLD_SHARE
        and max(shares[at - 1], *shares[at + 1 : at + 2], 0.0) < _WARM_SHARE
        for at, share in enumerate(shares)
    ]
    folds: list[bool] = []
    for cold, group in groupby(is_cold):
        length = len(list(group))
        folds += [cold and length >= _FOLDED_AT_LEAST] * length
    return folds


def _why(function: FunctionTimes) -> str:
    if function.name == MODULE_CODE and not function.why:
        return "module level"
    return _WHY.get(function.why, function.why)


def _where(function: FunctionTimes) -> str:
    return processes_in_words([process.label for process, _ in function.by_process])


def line_notes(profile: LineProfile, *, is_merged: bool = True) -> list[str]:
    """Returns one sentence per note; `is_merged`: times are summed over processes."""
    notes: list[str] = []
    processes = [process.label for process in profile.processes()]
    if not profile.functions:
        notes.append("No function was timed.")
    if is_merged and len(processes) > 1:
        notes.append(
            f"Times are summed over processes ({processes_in_words(processes)}) and can exceed the "
            "run time; --per-process splits them."
        )
    changed = {
        profile.site(function).rpartition(":")[0]
        for function in profile.functions
        if function.source is not None and function.source.has_changed
    }
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        files = ", ".join(sorted(changed))
        notes.append(f"{files} {verb} changed since the run; the page shows the lines that ran.")
    if profile.cost is not None:
        added = _overhead(profile.cost)
        notes.append(f"Line timing added {added}; use trainprof run for a verdict.")
    return [*notes, *(f"Incomplete: {sentence}." for sentence in profile.damage)]


def unseen_notes(profile: LineProfile) -> list[str]:
    """Returns why functions have no times, one sentence each."""
    return [
        f"{function.name} ({profile.site(function)}) has no line times: {function.unseen}."
        for function in profile.functions
        if not function.rows
    ]


def cost_in_short(cost: LineCost) -> list[str]:
    """Returns what was timed, and the time that this added, in fragments."""
    processes = counted(cost.processes, "process", "processes")
    timed = f"{counted(cost.functions, 'function')} timed in {processes}"
    return [timed, f"this added {_overhead(cost)}"]


def processes_in_words(labels: Sequence[str]) -> str:
    """Returns "main, 4 workers"; a single process by its label."""
    if len(labels) == 1:
        return labels[0]
    kinds = Counter(label.split()[-2:][0] for label in labels)
    words = {
        "main": "main",
        "rank": counted(kinds["rank"], "rank"),
        "worker": counted(kinds["worker"], "worker"),
        "process": counted(kinds["process"], "other process", "other processes"),
    }
    return ", ".join(text for kind, text in words.items() if kinds[kind])


def _overhead(cost: LineCost) -> str:
    events = f"{count(cost.hits)} line events"
    if cost.overhead_ns is None or cost.added_s is None:
        return f"an unknown time ({events})"
    ns = cost.overhead_ns
    each = f"{ns:.0f} ns" if ns < 1000 else seconds(ns * 1e-9)
    if cost.traces_callees:
        callees = "functions that they call are slower too"
        return f"at least {seconds(cost.added_s)} ({events} x {each}; {callees})"
    return f"about {seconds(cost.added_s)} ({events} x {each})"


def kernprof_table(
    profile: LineProfile, *, unit_s: float | None = None, skip_zero: bool = False
) -> str:
    """Returns the tables of all functions byte for byte as kernprof prints them.

    Other programs parse them. `skip_zero` leaves out functions without times.

    Source: show_text and show_func of line_profiler 5.1.0.
    """
    unit_s = _KERNPROF_UNIT_S if unit_s is None else unit_s
    shown = (function for function in profile.functions if function.rows or not skip_zero)
    tables = [_table(function, unit_s) for function in shown]
    return "".join([f"Timer unit: {unit_s:g} s\n\n", *tables])


def _table(function: FunctionTimes, unit_s: float) -> str:
    text = block(function)
    if text is None:
        lines = _LOST.format(_plain(function.file)).split("\n")
        first = min([function.line, *(row.line for row in function.rows)])
        last = max([first, *(row.line for row in function.rows)])
        numbers = [row.line for row in function.rows]
        if last - first < _MAX_EMPTY_LINES:
            numbers = list(range(function.line, function.line + last - first + 1))
        numbered = [(number, "") for number in numbers]
    else:
        file, name = _plain(function.file), _plain(function.name)
        lines = [f"File: {file}", f"Function: {name} at line {function.line}"]
        numbered = list(enumerate(text, start=function.line))
    cells = _line_cells(function, unit_s)
    widths = [
        max([least, *(len(row[at]) for row in cells.values())]) for at, least in enumerate(_CELLS)
    ]
    template = " ".join(f"%{width}s" for width in (_LINE_CELLS, *widths)) + "  %-s"
    header = template % _TABLE_TITLES
    rows = (
        template % (number, *cells.get(number, _EMPTY), _plain(line.rstrip("\n").rstrip("\r")))
        for number, line in numbered
    )
    total = f"Total time: {function.time * NS_S:g} s"
    return "\n".join([total, *lines, "", header, "=" * len(header), *rows, "\n"])


def _line_cells(function: FunctionTimes, unit_s: float) -> dict[int, _Cells]:
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


def _plain(text: str) -> str:
    """Returns `text` without terminal control characters but tabs and form feeds."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(x if x in ("\t", "\f") else one_line(x) for x in re.split("([\t\f])", text))


def _short(form: str, scientific: str, value: float, cells: int) -> str:
    text = form % value
    return text if len(text) <= cells else scientific % value
