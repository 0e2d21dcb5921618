"""Line times on a terminal: hot lines marked, cold ones folded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.line_times import (
    MODULE_CODE,
    FunctionTimes,
    LineProfile,
    LineTime,
    block,
    of_process,
)
from trainprof.report.layout import Column, Page, written
from trainprof.report.line_notes import line_notes, processes_in_words
from trainprof.report.line_table import line_cells
from trainprof.report.safe_text import clip_end, one_line
from trainprof.report.units import count, percent, seconds

HOT_SHARE: Final = 0.2
WARM_SHARE: Final = 0.05
COLD_SHARE: Final = 0.01
# So many cold lines in a row are folded: fewer are as quickly read as the line that says so.
FOLDED_AT_LEAST: Final = 4
# From so many functions on, a table above tells where to look.
OVERVIEW_FROM: Final = 3
HOT_MARK: Final = ">"
_TITLES: Final = ("Line", "Hits", "Time", "Per hit", "% time")
_GAP: Final = "  "
# Narrower than this a line of code tells nothing: columns give way to it.
_CODE_CELLS: Final = 30
_TAB_CELLS: Final = 4
_WIDEST_NAME: Final = 40
_BLANK: Final = (Text(),)

_WHY: Final = {"profile": "under @profile", "-f": "named by -f"}
_UNITS: Final = {1.0: "s", 1e-3: "ms", 1e-6: "µs", 1e-9: "ns"}


def render(
    profile: LineProfile,
    *,
    width: int,
    color: bool,
    unicode: bool = True,
    verbose: bool = False,
    unit_s: float | None = None,
    skip_zero: bool = False,
    per_process: bool = False,
    closing: Sequence[str] = (),
) -> str:
    """Returns the functions one after the other, then what is to be known of them.

    Args:
        profile: Its functions are shown in their order.
        width: Cells in a line; no line is wider.
        color: Allow colour codes; without it the text holds no escape at all.
        unicode: False gives ASCII only.
        verbose: Fold nothing.
        unit_s: Unit of the times, in seconds; None gives each its own.
        skip_zero: Leave out functions that were never reached.
        per_process: Each process by itself, not added up.
        closing: Command to copy behind the notes, in words before it and itself, or nothing.
    """
    page = Page(width=width, unicode=unicode, verbose=verbose)
    lines: list[Text] = []
    if per_process:
        for process in profile.processes():
            lines += [page.text(f"== {process.label} ==", "bold"), *_BLANK]
            part = of_process(profile, process)
            lines += _functions(part.functions, part, page, unit_s)
        unseen = [one for one in profile.functions if not one.rows and not skip_zero]
        lines += _functions(unseen, profile, page, unit_s)
    else:
        shown = [one for one in profile.functions if one.rows or not skip_zero]
        if len(shown) >= OVERVIEW_FROM:
            lines += [*_overview(shown, profile, page), *_BLANK]
        lines += _functions(shown, profile, page, unit_s)
    for note in line_notes(profile, is_merged=not per_process):
        lines += page.paragraph(note)
    if closing:
        lines += page.command("Saved", *closing)
    return written(lines, page, color=color)


def _functions(
    functions: Sequence[FunctionTimes], profile: LineProfile, page: Page, unit_s: float | None
) -> list[Text]:
    """Returns each function's lines; those that took next to nothing in one sentence."""
    longest = max((function.time for function in functions), default=0)
    is_minor = [bool(one.rows) and one.time < COLD_SHARE * longest for one in functions]
    if page.verbose or sum(is_minor) == 1:
        is_minor = [False] * len(functions)
    minor = [one for one, folded in zip(functions, is_minor, strict=True) if folded]
    shown = [one for one, folded in zip(functions, is_minor, strict=True) if not folded]
    lines = [line for one in shown for line in _function(one, profile, page, unit_s)]
    if minor:
        names = ", ".join(page.shortened(one.name, _WIDEST_NAME) for one in minor)
        under = f"Less than {percent(COLD_SHARE)} of the longest's time"
        lines += page.paragraph(f"{under}, shown by --verbose: {names}")
        lines += _BLANK
    return lines


def _overview(functions: Sequence[FunctionTimes], profile: LineProfile, page: Page) -> list[Text]:
    ranked = sorted(functions, key=lambda function: -function.time)
    return page.table(
        [
            Column("Function", [one.name for one in ranked], is_number=False),
            Column("at", [profile.site(one) for one in ranked], is_number=False, gives_way=True),
            Column("chosen as", [_why(one) for one in ranked], is_number=False, dropped=1),
            Column("time", [_time(one.time, profile) for one in ranked]),
            Column("in", [_where(one) for one in ranked], is_number=False, dropped=2),
        ]
    )


def _function(
    function: FunctionTimes, profile: LineProfile, page: Page, unit_s: float | None
) -> list[Text]:
    name = page.shortened(function.name, page.width // 2)
    heading = Text.assemble(
        page.text(name, "bold"), "  ", page.text(page.site(profile.site(function)))
    )
    why = _why(function)
    if function.unseen is not None and not function.rows:
        told = [f"no line was reached: {function.unseen}", why]
        return [heading, *_indented(page, told), *_BLANK]
    where = f" in {_where(function)}" if function.by_process else ""
    told = [f"{_time(function.time, profile)}{where}", why]
    if function.source is None:
        told.append("the text of its lines is lost")
    return [heading, *_indented(page, told), *_listing(function, profile, page, unit_s), *_BLANK]


def _indented(page: Page, fragments: Sequence[str]) -> list[Text]:
    return page.paragraph(", ".join(fragment for fragment in fragments if fragment), indent=2)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A line of a function: number, text, and how much of the function's time it took."""

    number: int
    code: str
    row: LineTime | None
    share: float


def _listing(
    function: FunctionTimes, profile: LineProfile, page: Page, unit_s: float | None
) -> list[Text]:
    listed = _listed(function)
    cells = _cells(function, profile.unit_s, unit_s)
    titles = list(_TITLES)
    if unit_s is not None:
        titles[2] = f"Time ({_UNITS.get(unit_s, f'{unit_s:g} s')})"
    rows = [[str(one.number), *cells.get(one.number, ("", "", "", ""))] for one in listed]
    widths = [max(cell_len(row[at]) for row in (titles, *rows)) for at in range(len(titles))]
    kept = _kept_columns(widths, page.width)
    room = page.width - sum(widths[at] + len(_GAP) for at in kept) - len(HOT_MARK) - 1
    lines = [_line(titles, widths, kept, page, " ", "Line contents", "bold")]
    for index, length in _runs(listed, is_whole=page.verbose):
        part = listed[index : index + length]
        if length > 1:
            share = sum(one.share for one in part)
            taken = f", {percent(share)}" if share > 0 else ""
            blank = [""] * len(titles)
            told = f"… {count(length)} lines{taken}"
            lines.append(_line(blank, widths, kept, page, " ", clip_end(told, room), "dim"))
            continue
        (one,) = part
        mark = HOT_MARK if one.share >= HOT_SHARE else " "
        code = clip_end(one_line(one.code, unicode=page.unicode), room)
        lines.append(_line(rows[index], widths, kept, page, mark, code, _style(one)))
    return lines


def _listed(function: FunctionTimes) -> list[_Listed]:
    text = block(function)
    by_line = {row.line: row for row in function.rows}
    if text is None:
        numbers = sorted(by_line)
        lines = ["" for _ in numbers]
    else:
        numbers = list(range(function.line, function.line + len(text)))
        lines = _dedented(text)
    total = function.time
    listed = []
    for number, code in zip(numbers, lines, strict=True):
        row = by_line.get(number)
        share = row.time / total if row is not None and total > 0 else 0.0
        listed.append(_Listed(number, code, row, share if math.isfinite(share) else 0.0))
    return listed


def _dedented(text: Sequence[str]) -> list[str]:
    lines = [line.rstrip().expandtabs(_TAB_CELLS) for line in text]
    margins = [len(line) - len(line.lstrip(" ")) for line in lines if line]
    margin = min(margins, default=0)
    return [line[margin:] for line in lines]


def _cells(
    function: FunctionTimes, timer_unit_s: float, unit_s: float | None
) -> Mapping[int, tuple[str, str, str, str]]:
    if unit_s is not None:
        written_ = line_cells(function, timer_unit_s / unit_s)
        return {
            at: (h.strip(), t.strip(), p.strip(), s.strip())
            for at, (h, t, p, s) in written_.items()
        }
    total = function.time
    return {
        row.line: (
            count(row.hits),
            seconds(row.time * timer_unit_s),
            seconds(row.time * timer_unit_s / row.hits),
            f"{100 * row.time / total:.1f}" if total > 0 else "",
        )
        for row in function.rows
    }


def _kept_columns(widths: Sequence[int], width: int) -> list[int]:
    """Leaves out time per hit, hits, the time, where the code has no room else."""
    kept = list(range(len(widths)))
    for given_up in (3, 1, 2):
        if width - sum(widths[at] + len(_GAP) for at in kept) >= _CODE_CELLS:
            break
        kept.remove(given_up)
    return kept


def _runs(listed: Sequence[_Listed], *, is_whole: bool) -> list[tuple[int, int]]:
    """Returns (index, count): 1 for a line to be shown, more for a run of folded ones."""
    shown = [is_whole or one.share >= COLD_SHARE for one in listed]
    for index, one in enumerate(listed):
        if one.share >= WARM_SHARE:
            for neighbour in (index - 1, index + 1):
                if 0 <= neighbour < len(listed):
                    shown[neighbour] = True
    for index in range(_opening_lines(listed)):
        shown[index] = True
    runs: list[tuple[int, int]] = []
    index = 0
    while index < len(listed):
        end = index
        while end < len(listed) and not shown[end]:
            end += 1
        if end - index >= FOLDED_AT_LEAST:
            runs.append((index, end - index))
            index = end
        else:
            last = max(end, index + 1)
            runs += [(at, 1) for at in range(index, last)]
            index = last
    return runs


def _opening_lines(listed: Sequence[_Listed]) -> int:
    """Counts the decorators and the line that names the function."""
    for index, one in enumerate(listed):
        if not one.code.startswith("@"):
            return index + 1
    return len(listed)


def _style(one: _Listed) -> str:
    if one.row is None:
        return "dim"
    if one.share >= HOT_SHARE:
        return "bold red"
    return "yellow" if one.share >= WARM_SHARE else ""


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    kept: Sequence[int],
    page: Page,
    mark: str,
    code: str,
    style: str,
) -> Text:
    padded = [" " * (widths[at] - cell_len(cells[at])) + cells[at] + _GAP for at in kept]
    return page.text(f"{''.join(padded)}{mark} {code}".rstrip(), style)


def _why(function: FunctionTimes) -> str:
    if function.name == MODULE_CODE and not function.why:
        return "module level"
    return _WHY.get(function.why, function.why)


def _where(function: FunctionTimes) -> str:
    return processes_in_words([name for name, _ in function.by_process])


def _time(time: float, profile: LineProfile) -> str:
    return seconds(time * profile.unit_s)
